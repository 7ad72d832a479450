"""Runs whose islands train with a loop of the user's own: configuration, task and evaluation."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from archipelago.lab.training.compiled_parts import compiled_parts
from archipelago.lab.training.supported import refused
from cluster.config.load import parse, read
from cluster.config.rule import rule_for
from cluster.config.schema import Config
from cluster.launch.preflight import enter
from cluster.workers.assembly import compiled, task_of
from cluster.workers.evaluator import Evaluator
from coordinator.errors import UserMistake
from coordinator.fragments import sew
from coordinator.protocol import Fragment, Lease
from islands.loop_inner import LoopInner
from islands.loop_task import ForeignInit, loop_task
from tests.given import LEAST, data_spec, sums

NUMBERS = 40
"""The examples of the task below; the held-out ones are a fifth of them."""
MINE = f"""
import numpy as np
import archipelago as ap

JOINED = []

def train():
    JOINED.append(ap.join())

def idle():
    pass

def init(seed):
    made = np.random.default_rng(seed).normal(size=(3, 2)).astype(np.float32)
    return {{"w": made, "b": np.zeros(2, np.float32)}}

def evaluate(params, batch):
    assert type(params["w"]) is type(batch["x"]) is np.ndarray
    return np.mean(params["w"]) + np.mean(batch["x"]), {{"most": np.max(batch["x"])}}

def bad(params, batch):
    return params["v"]

def several(params, batch):
    return batch["x"]

def examples():
    return {{"x": np.arange({NUMBERS}, dtype=np.float32)}}

def task(data, evaluated="evaluate", has_loop=True):
    loop = train if has_loop else None
    return ap.loop_task(loop, init, globals()[evaluated], data, examples=examples, name="own")
"""
LEASES = {"lease_windows": 8, "heldout_percent": 20.0}


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_loop.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


def config_of(*overrides: str, **options: object) -> Config:
    task = {"target": "a_loop:task", "options": options}
    tables: dict[str, Any] = {"task": task, "data": LEASES, "islands": [{"batch_size": 4}]}
    return parse({**tables, "sync": {"fragments": 2}}, origin="test", overrides=overrides)


def preset(*overrides: str) -> Config:
    tables = {"task": {"preset": "byte-tiny", "loop": "a_loop:train"}, "islands": [{}]}
    return parse(tables, origin="test", overrides=overrides)


REFUSED = [
    ("run.mode=data-parallel", "run.mode", '"data-parallel" sums the gradients of all islands'),
    ("sync.moments=mean", "sync.moments", '"mean" shares the moments of our optimizer'),
    ("sync.every=auto", "sync.step_s", 'is needed by sync.every = "auto"'),
    ("optimizer.weight_decay=0.2", "optimizer.weight_decay", "has no effect: a_loop:train has its"),
    ("optimizer.learning_rate=0.2", "optimizer.learning_rate", "has no effect"),
    ("islands.0.accumulate=2", "islands.0.accumulate", "a_loop:train computes its batch itself"),
    ("islands.0.hosts=2", "islands.0.hosts", "2 hosts cannot share a_loop:train"),
    ("task.loop=train", "task.loop", "must look like module:attribute"),
]


@pytest.mark.parametrize(("override", "where", "what"), REFUSED)
def test_keys_that_do_not_go_with_a_loop_are_refused(override: str, where: str, what: str) -> None:
    with pytest.raises(UserMistake) as found:
        preset(override)
    assert any(
        line.strip().startswith(f"{where}: ") and what in line
        for line in str(found.value).splitlines()
    ), found.value


def test_named_loop_becomes_that_of_the_task() -> None:
    assert preset("sync.every=auto", "sync.step_s=0.5").sync.step_s == 0.5
    config = preset()
    assert task_of(config).loop is not None
    assert config.learner_code == {"task.loop": "a_loop:train"}
    assert rule_for(config, "f").window_tokens == 0, "the loop counts its tokens"
    assert refused(config)[0].startswith("task.loop: virtual time has no loop")


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("a_loop:tarin", "module a_loop has no tarin; did you mean train?"),
        ("a_loop:JOINED", 'task.loop = "a_loop:JOINED" is a list, not a function'),
        ("b_loop:train", "no module 'b_loop'"),
    ],
)
def test_loop_that_cannot_be_found_is_refused(loop: str, message: str) -> None:
    with pytest.raises(UserMistake, match=message):
        task_of(preset(f"task.loop={loop}"))


def test_second_loop_is_refused() -> None:
    with pytest.raises(UserMistake, match="task own has a loop already; leave one out"):
        task_of(config_of("task.loop=a_loop:train"))


def test_virtual_time_refuses_a_task_with_a_loop() -> None:
    with pytest.raises(UserMistake, match="trains with a loop of its own"):
        compiled_parts(config_of())
    with pytest.raises(UserMistake, match="task own has no loss in JAX"):
        task_of(config_of()).loss({}, np.zeros(3))


def entered(folder: Path, text: str) -> None:
    """Check a configuration as the start of a run does."""
    (path := folder / "run.toml").write_text(text)
    enter(read(path), path, folder / "run", datetime.now(UTC))


OWN = """
[task]
target = "a_loop:task"
options = { evaluated = "EVALUATED" }
[data]
lease_windows = 8
heldout_percent = 20.0
[sync]
fragments = 2
[[islands]]
batch_size = 4
"""


def test_sound_task_with_a_loop_may_start(tmp_path: Path) -> None:
    entered(tmp_path, OWN.replace("EVALUATED", "evaluate"))
    least = LEAST.replace("SOURCE", str(sums(tmp_path / "text"))) + "[[islands]]\nbatch_size = 4\n"
    looped = least.replace("[task]", '[task]\nloop = "a_loop:train"')
    entered(tmp_path, looped)


@pytest.mark.parametrize(
    ("evaluated", "more", "message"),
    [
        ("bad", "", r"a_loop.py:\d+: task own: evaluate raises KeyError: 'v' \(in bad\)"),
        ("several", "", r"a_loop.py:\d+: task own: evaluate raises TypeError"),
        ("evaluate", '[optimizer]\nkind = "adamw"\n', "optimizer.kind: has no effect: the loop of"),
        ("evaluate", '[sync]\nmoments = "mean"\n', "sync.moments: "),
        ("evaluate", "[monitor.evaluator]\nhosts = 2\n", "2 hosts cannot share the evaluate of"),
    ],
)
def test_task_that_does_not_fit_its_loop_is_refused(
    tmp_path: Path, evaluated: str, more: str, message: str
) -> None:
    text = OWN.replace("EVALUATED", evaluated)
    text = text.replace("[sync]\n", more) if more.startswith("[sync]") else text + more
    with pytest.raises(UserMistake, match=message):
        entered(tmp_path, text)


def test_evaluation_without_a_loop_is_refused(tmp_path: Path) -> None:
    text = OWN.replace('evaluated = "EVALUATED"', "has_loop = false")
    with pytest.raises(UserMistake, match="evaluate is for a task that a loop trains"):
        entered(tmp_path, text)


def test_evaluator_calls_the_evaluation_of_the_host() -> None:
    """The held-out examples are a fifth, in one batch, since it would have 16."""
    judge, task = Evaluator(config_of()), task_of(config_of())
    (held_out,) = task.heldout(16)
    flats = [flat + 1 for flat in judge.initial()]
    leaves = dict(zip(("b", "w"), sew(judge.layout, flats), strict=True))
    assert judge.loss(flats) == pytest.approx(np.mean(leaves["w"]) + np.mean(held_out["x"]))
    assert judge.metrics == {"most": np.max(held_out["x"])}
    assert len(held_out["x"]) == NUMBERS // 5


def test_island_is_ready_once_its_loop_has_asked_to_join() -> None:
    parts = compiled(config := config_of("islands.0.encode=device"), config.islands[0])
    assert isinstance(parts.inner, LoopInner)
    assert parts.loop is not None
    with pytest.raises(UserMistake, match=r"a_loop:idle returned without a call of .*join\(\)"):
        compiled(bad := preset("task.loop=a_loop:idle"), bad.islands[0])


# --- tasks without JAX ----------------------------------------------------------------------------


def unused(*arguments: object) -> float:
    raise AssertionError(arguments)


@pytest.mark.parametrize("leaf", [[1.0], None, "w"])
def test_init_of_no_arrays_is_refused(leaf: object) -> None:
    task = loop_task(lambda: None, lambda seed: {"w": leaf, "b": 1.0}, unused, data_spec())
    with pytest.raises(UserMistake, match=r"task loop: init returns a \w+ among its leaves"):
        _ = task.shapes


def tensors(seed: int) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    linear = torch.nn.Linear(3, 2)
    return dict(linear.named_parameters())


def arrays(seed: int) -> dict[str, Any]:
    return {"weight": np.full((2, 3), seed, np.float32), "bias": np.zeros(2, np.float32)}


@pytest.mark.parametrize("init", [tensors, arrays])
def test_init_of_other_libraries(init: Callable[[int], dict[str, Any]]) -> None:
    seen = list[Any]()
    task = loop_task(
        lambda: None,
        init,
        lambda params, batch: seen.append(params) or 0.5,
        data_spec(),
        embedding=["weight"],
        stacked=["bias"],
    )
    form = {"weight": ((2, 3), np.float32), "bias": ((2,), np.float32)}
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in task.shapes.items()} == form
    made, again = task.init(3), task.init(3)
    assert all(type(leaf) is np.ndarray for leaf in made.values())
    np.testing.assert_array_equal(made["weight"], again["weight"])
    assert task.embedding("weight")
    assert not task.embedding("bias")
    assert task.stacked("bias")
    assert task.evaluate is not None
    for given in (made, jax.tree.map(jax.numpy.asarray, made)):
        task.evaluate(given, None)
        kinds = {type(leaf) for leaf in init(0).values()}
        assert {type(leaf).__module__.partition(".")[0] for leaf in seen[-1].values()} == {
            kind.__module__.partition(".")[0] for kind in kinds
        }
        np.testing.assert_array_equal(np.asarray(seen[-1]["weight"]), made["weight"])


def test_init_that_is_called_twice_is_drawn_once_for_its_shapes() -> None:
    drawn = list[int]()
    init = ForeignInit(lambda seed: drawn.append(seed) or arrays(seed), "own")
    init.shapes()
    init.as_made(init(1))
    init.as_made(init(2))
    assert drawn == [0, 1, 2]


# --- the examples ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("example", ["loop_jax", "loop_torch"])
def test_loop_of_an_example_learns(example: str, tmp_path: Path) -> None:
    """One island alone, without a run: the loop takes its turns, and its model is evaluated."""
    if example == "loop_torch":
        pytest.importorskip("torch")
    module = importlib.import_module(f"archipelago.examples.{example}")
    tables = {**module.CONFIG, "task": {"target": f"archipelago.examples.{example}:task"}}
    data = {"data.source": str(sums(tmp_path / "text")), "data.heldout_percent": 20.0}
    config = parse(tables, overrides=[f"{key}={value!r}" for key, value in data.items()])
    parts, judge = compiled(config, config.islands[0]), Evaluator(config)
    assert isinstance(parts.inner, LoopInner)
    stream = parts.task.stream(8)
    stream.add(Lease(0))
    state, losses = parts.inner.start(parts.task.init(0)), list[float]()
    for clock in range(30):
        state, measures = parts.inner.step(state, stream.next(), clock)
        assert measures.tokens == 8 * 64
        losses.append(float(measures.loss))
    assert losses[-1] < losses[0] - 1
    flats = [np.asarray(parts.port.take(state.params, Fragment(p))) for p in range(4)]
    assert judge.loss(flats) < judge.loss(judge.initial()) - 1
    assert parts.loop is not None
    parts.loop.end(state.params)
