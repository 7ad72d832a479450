"""Real training in virtual time is reproducible, and matches its reference computations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archipelago.lab.training import data_parallel as single
from archipelago.lab.training.compiled_parts import compiled_parts
from archipelago.lab.training.loss_curve import Learned, LossCurve
from archipelago.lab.training.timing import Timing, Virtual
from archipelago.lab.training.train import train
from archipelago.lab.training.virtual_file import enter, load, written
from archipelago.lab.training.virtual_interval import with_virtual_interval
from archipelago.lab.training.world import TrainingWorld
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.config.values import Mode
from cluster.shard.build import outer_of
from cluster.storage.model_file import fingerprint
from cluster.workers.assembly import optimizer_of, task_of
from cluster.workers.evaluator import Evaluator
from coordinator.errors import UserMistake
from coordinator.fragments import sew
from coordinator.merge import MergeRule
from coordinator.outer import OuterRule
from coordinator.protocol import Island, Join, Lease, LeaseWanted
from tests.cluster.turns import by_turns
from tests.cluster.twin import twin
from tests.given import first_of, sums

pytestmark = pytest.mark.slow

ISLANDS, STEPS = 3, 24
TINY = {"width": 16, "layers": 1, "heads": 1, "hidden": 32}
AT_ONCE = Timing()
JITTERY = Timing(jitter=0.3, latency_s=0.02, gbit_s=0.01)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums(tmp_path_factory.mktemp("text"))


def config_of(text: Path, *overrides: str, **tables: Any) -> Config:
    """Return a configuration of three islands with AdamW, whose updates round reproducibly."""
    given: dict[str, Any] = {
        "run": {"steps": STEPS},
        "task": {"preset": "byte-tiny", "options": TINY},
        "data": {
            "source": str(text), "window": 16, "lease_windows": 32, "heldout_percent": 20.0,
        },
        "optimizer": {"kind": "adamw", "warmup_steps": 4},
        "sync": {"every": 6, "fragments": 3},
        "islands": [{"group": "local", "count": ISLANDS, "batch_size": 2}],
    }  # fmt: skip
    if "run.mode=data-parallel" in overrides:
        given["sync"] = {"fragments": 3}
    return parse({**given, **tables}, origin="test", overrides=overrides)


def curve_of(config: Config) -> LossCurve:
    return LossCurve(Evaluator(config), 0)


MODES = {
    Mode.DECOUPLED: ("sync.wire_up=int4", "sync.wire_down=int4"),
    Mode.DILOCO: ("sync.wire_up=int4", "sync.fragments=1"),
    Mode.STREAMING: ("sync.wire_down=int4",),
    Mode.DATA_PARALLEL: (),
}


@pytest.mark.parametrize("mode", first_of(MODES))
def test_bits_are_determined_by_the_seed(text: Path, mode: Mode) -> None:
    def learned(seed: int) -> Learned:
        config = config_of(text, f"run.mode={mode}", f"run.seed={seed}", *MODES[mode])
        return train(config, JITTERY, 6)

    first, again, other = learned(1), learned(1), learned(2)
    assert first == again
    assert first.figures["global_sha256"] != other.figures["global_sha256"]
    assert [look.t for look in first.curve] == [6, 12, 18, 24]
    assert first.curve[0].heldout_loss > first.curve[-1].heldout_loss


DROPS = """
import dataclasses
import jax
import jax.numpy as jnp
from islands.task import load_task


def task(data, drops):
    found = load_task("byte-tiny", None, {"width": 16, "layers": 1, "heads": 1, "hidden": 32}, data)

    def loss(params, batch, key):
        if key is not None and drops:
            kept = jax.random.bernoulli(key, 0.9, params["embedding"].shape)
            params = {**params, "embedding": params["embedding"] * kept / 0.9}
        result = found.loss(params, batch)
        return result, {"perplexity": jnp.exp(result)}

    return dataclasses.replace(found, loss=loss)
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", [Mode.DECOUPLED, Mode.DATA_PARALLEL])
def test_bits_of_a_task_that_draws_are_determined_by_the_seed(
    text: Path, mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_task_that_drops.py").write_text(DROPS)
    monkeypatch.syspath_prepend(tmp_path)

    def learned(seed: int, *, drops: bool = True) -> dict[str, Any]:
        task = {"target": "a_task_that_drops:task", "options": {"drops": drops}}
        words = f"run.mode={mode}", f"run.seed={seed}"
        return dict(train(config_of(text, *words, task=task), JITTERY, 6).figures)

    first = learned(1)
    assert learned(1) == first
    hashes = {each["global_sha256"] for each in (first, learned(2), learned(1, drops=False))}
    assert len(hashes) == 3
    metrics = first["heldout_metrics"]
    assert np.log(metrics["perplexity"]) == pytest.approx(first["heldout_loss"], abs=0.05)
    assert first["heldout_loss"] < first["initial_heldout_loss"]


NORMALIZES = """
import archipelago
import jax
import jax.numpy as jnp
from functools import cache

WIDTH, SEEN = 16, 4


def task(data):
    @cache
    def corpus():
        return archipelago.read_corpus(data, 256)

    def init(seed):
        a, b = jax.random.split(jax.random.key(seed))
        return {
            "embedding": jax.random.normal(a, (256, WIDTH)),
            "scale": jnp.ones(WIDTH), "shift": jnp.zeros(WIDTH),
            "output": 0.1 * jax.random.normal(b, (SEEN * WIDTH, 256)),
        }

    def loss(params, state, batch, key):
        hidden = params["embedding"][batch]
        mean, variance = hidden.mean((0, 1)), hidden.var((0, 1))
        moved = {"mean": 0.9 * state["mean"] + 0.1 * mean,
                 "variance": 0.9 * state["variance"] + 0.1 * variance}
        if key is None:
            mean, variance = state["mean"], state["variance"]
        hidden = (hidden - mean) / jnp.sqrt(variance + 1e-5) * params["scale"] + params["shift"]
        length = batch.shape[1] - SEEN
        seen = jnp.concatenate([hidden[:, i : i + length] for i in range(SEEN)], -1)
        logits = jax.nn.log_softmax(jnp.tanh(seen) @ params["output"])
        chosen = jnp.take_along_axis(logits, batch[:, SEEN:, None], -1)
        return -chosen.mean(), (moved, {"least_variance": variance.min()})

    return archipelago.Task(
        name="normalizes", vocabulary=256, init=init, loss=loss,
        tokens=lambda batch: batch.shape[0] * (batch.shape[1] - SEEN),
        stream=lambda size: archipelago.Stream(corpus(), size, data.seed),
        heldout=lambda size: corpus().heldout_batches(size),
        stacked=lambda path: False, embedding=lambda path: path == "embedding",
        init_state=lambda seed: {"mean": jnp.zeros(WIDTH), "variance": jnp.ones(WIDTH)},
    )
"""


class Kept(LossCurve):
    """A curve that keeps the final model."""

    flats: Sequence[np.ndarray] = ()

    def ended(
        self, config: Config, t: int, time_s: float, measured: dict[str, Any], flats: Sequence[Any]
    ) -> Learned:
        self.flats = flats
        return super().ended(config, t, time_s, measured, flats)


@pytest.mark.long
@pytest.mark.parametrize("wire", ["int4", "f32"])
def test_state_after_a_run_agrees_with_that_of_data_parallel_training(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """Islands measure batch statistics on their own data, and momentum and wire spoil none."""
    (tmp_path / "a_task_that_normalizes.py").write_text(NORMALIZES)
    monkeypatch.syspath_prepend(tmp_path)

    def learned(mode: Mode) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        words = (f"run.mode={mode}", "run.steps=60", "optimizer.learning_rate=0.02")
        if mode is Mode.DECOUPLED:
            words += (f"sync.wire_up={wire}", f"sync.wire_down={wire}", "sync.every=4")
        task = {"target": "a_task_that_normalizes:task"}
        config = config_of(text, *words, task=task)
        curve = Kept(Evaluator(config), 0)
        if mode is Mode.DECOUPLED:
            figures = TrainingWorld(config, JITTERY, curve).run().figures
        else:
            figures = single.train(config, JITTERY, curve).figures
        layout = curve.evaluator.layout
        paths = (leaf.path for leaf in layout.leaves)
        return dict(figures), dict(zip(paths, sew(layout, curve.flats), strict=True))

    figures, leaves = learned(Mode.DECOUPLED)
    one_figures, one_leaves = learned(Mode.DATA_PARALLEL)
    assert figures["heldout_metrics"]["least_variance"] > 0.1
    for name in ("state/mean", "state/variance"):
        assert np.abs(leaves[name] - one_leaves[name]).max() < 0.25
    assert np.abs(leaves["state/mean"]).max() > 0.05, "the mean moved from zero"
    assert figures["heldout_loss"] < 0.9 * figures["initial_heldout_loss"]
    assert figures["heldout_loss"] == pytest.approx(one_figures["heldout_loss"], rel=0.1)


WAITING = {
    "decoupled": ("sync.overlap=0", f"sync.quorum={ISLANDS}", "sync.adopt=overwrite"),
    "diloco": ("run.mode=diloco", "sync.fragments=1", "sync.every=5"),
    "streaming": ("run.mode=streaming", "sync.overlap=2"),
    "streaming that carries": ("run.mode=streaming", "sync.overlap=1", "sync.adopt=carry"),
    "shared moments that come late": (
        "run.mode=streaming", "sync.overlap=2", "sync.adopt=carry", "sync.moments=mean",
        "sync.wire_moments=int8", "optimizer.kind=muon", "sync.every=[[0, 3], [10, 6]]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wires", first_of([("int4", "int4"), ("f32", "f32"), ("bf16", "int8")]))
@pytest.mark.parametrize("how", first_of(WAITING))
def test_lock_step_rounds_equal_plain_turns_bit_for_bit(
    text: Path, how: str, wires: tuple[str, str]
) -> None:
    """Reports, leases, hand-ins and adoptions go through the rules, at any pace."""
    up, down = wires
    config = config_of(text, *WAITING[how], f"sync.wire_up={up}", f"sync.wire_down={down}")
    world = TrainingWorld(config, JITTERY, curve_of(config))
    free, turned = world.run().figures, by_turns(config)
    assert free["global_sha256"] == fingerprint(turned.public)
    assert (free["merges"], free["tokens_trained"]) == (turned.merges, turned.tokens_trained)
    assert free["up_bytes_per_token"] == turned.up_bytes / turned.tokens_trained


@pytest.mark.long
def test_diloco_matches_a_naive_reference(text: Path) -> None:
    config = config_of(
        text, "run.mode=diloco", "sync.fragments=1", "sync.wire_up=f32", "sync.wire_down=f32"
    )
    world = TrainingWorld(config, JITTERY, curve_of(config))
    world.run()
    task, outer = task_of(config), outer_of(config)
    assert isinstance(outer, OuterRule)
    assert (outer.learning_rate, outer.momentum) == (0.7, 0.9)
    layout = Evaluator(config).layout
    streams = [task.stream(2) for _ in range(ISLANDS)]
    for number in range(2 * ISLANDS):
        streams[number // 2].add(Lease(number))
    data = [[stream.next() for _ in range(STEPS)] for stream in streams]
    wanted = twin(task, layout, optimizer_of(config), 6, MergeRule.MEAN, outer, data)
    for mine, theirs in zip(sew(layout, world.public), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5 * np.max(np.abs(theirs)))


def test_one_island_merged_unchanged_matches_data_parallel(text: Path) -> None:
    """A single island that is merged unchanged equals data-parallel training."""
    alone = ("islands.0.count=1", "sync.wire_up=f32", "sync.wire_down=f32")
    one = train(config_of(text, "run.mode=data-parallel", *alone), AT_ONCE, 0)
    free = train(config_of(text, "sync.overlap=0", *alone), AT_ONCE, 0)
    for key in ("heldout_loss", "initial_heldout_loss"):
        assert one.figures[key] == pytest.approx(free.figures[key], rel=1e-4)
    assert one.figures["tokens_trained"] == free.figures["tokens_trained"]


@pytest.mark.long
def test_given_leases_override_granted_ones(text: Path) -> None:
    config = config_of(text, "sync.overlap=0", f"sync.quorum={ISLANDS}")
    first = TrainingWorld(config, AT_ONCE, curve_of(config))
    names = [*reversed(config.island_names)]
    first.run()
    reading = granted(first)
    assert reading[Island("local-0")][:2] == [0, 1]
    other = TrainingWorld(config, AT_ONCE, curve_of(config), order=names)
    plain = [other.run().figures["global_sha256"]]
    same = TrainingWorld(config, AT_ONCE, curve_of(config), order=names, reading=reading)
    assert same.run().figures["global_sha256"] == digest(first) != plain[0]


def digest(world: TrainingWorld) -> object:
    return world._curve.ended(world.config, 0, 0.0, {"tokens_trained": 0}, world.public).figures[
        "global_sha256"
    ]


def granted(world: TrainingWorld) -> dict[Island, list[int]]:
    """Return the leases of each island from the tape; the rules grant them in order."""
    reading, number = dict[Island, list[int]](), 0
    for _, event in world.tape:
        match event:
            case Join(island):
                reading.setdefault(island, []).extend((number, number + 1))
                number += 2
            case LeaseWanted(life):
                reading[life.island].append(number)
                number += 1
            case _:
                pass
    return reading


@pytest.mark.long
def test_quorum_of_one_does_not_wait_for_stragglers(text: Path) -> None:
    islands = [
        {"group": "fast", "count": 2, "batch_size": 2},
        {"group": "slow", "count": 1, "batch_size": 2, "speed": 0.25},
    ]
    loose = train(config_of(text, "sync.quorum=1", islands=islands), AT_ONCE, 0).figures
    strict = train(config_of(text, "sync.quorum=3", islands=islands), AT_ONCE, 0).figures
    assert real(strict["mean_participants"]) > real(loose["mean_participants"])
    assert real(loose["wall_s"]) < 0.6 * real(strict["wall_s"])


@pytest.mark.long
def test_extra_steps_of_fast_islands_lower_the_loss(text: Path) -> None:
    """T is the slowest island's clock.

    By their own clocks the fast islands' rates would fall to the floor after a quarter of the run,
    and their extra tokens would improve the loss by only two per cent.
    """
    islands = [
        {"group": "fast", "count": 2, "batch_size": 2},
        {"group": "slow", "count": 1, "batch_size": 2, "speed": 0.25},
    ]
    settings = ("optimizer.kind=muon", "optimizer.floor_fraction=0.001", "run.steps=80")

    def learned(*overrides: str, **tables: Any) -> Learned:
        return train(config_of(text, *settings, *overrides, **tables), AT_ONCE, 0)

    uneven = learned("sync.quorum=3", islands=islands).figures
    even = learned("sync.quorum=3").figures
    assert uneven["rejected_contributions"] == 0
    assert real(uneven["tokens_trained"]) > 2.5 * real(even["tokens_trained"])
    assert real(uneven["heldout_loss"]) < 0.85 * real(even["heldout_loss"])


@pytest.mark.long
def test_merging_every_step_with_overlap_learns_as_well_as_waiting(text: Path) -> None:
    """Each island hands in its next step before it adopts the merge of the last one.

    Its own steps must stay in place meanwhile, or each gradient would lag one step behind its
    parameters.
    """
    settings = ("optimizer.kind=muon", "sync.every=1", "sync.fragments=1", "run.steps=80")

    def learned(overlap: int) -> Learned:
        more = (f"sync.overlap={overlap}", f"sync.quorum={ISLANDS}")
        return train(config_of(text, *settings, *more), AT_ONCE, 0)

    waiting, training_on = learned(0).figures, learned(1).figures
    assert (waiting["effective_overlap"], training_on["effective_overlap"]) == (0.0, 1.0)
    assert waiting["merges"] == training_on["merges"]
    assert real(training_on["wall_s"]) < 0.95 * real(waiting["wall_s"])
    assert real(training_on["heldout_loss"]) < 1.015 * real(waiting["heldout_loss"])


@pytest.mark.long
def test_grace_window_includes_learners_that_are_slightly_late(text: Path) -> None:
    timing = Timing(jitter=0.2)
    met = train(config_of(text, "sync.quorum=1"), timing, 0).figures
    missed = train(config_of(text, "sync.quorum=1", "sync.grace=0"), timing, 0).figures
    assert real(met["mean_participants"]) > real(missed["mean_participants"])


def test_killed_island_returns_with_donated_moments(text: Path) -> None:
    kill = '{at_step=6, kind="kill", island="local-1"}'
    config = config_of(text, f"faults.plan=[{kill}]", "sync.quorum=2")
    learned = train(config, Timing(back_s=1.0), 0).figures
    assert learned["faults"] == 1
    (recovered_s,) = learned["recovery_s"]  # type: ignore[misc]
    assert 1.0 < recovered_s < 4.0
    assert real(learned["tokens_lost"]) > 0
    tokens = ("merged", "discarded", "lost", "outstanding")
    assert learned["tokens_trained"] == sum(real(learned[f"tokens_{each}"]) for each in tokens)


@pytest.mark.parametrize(
    "kind", ["stop", "slow", "cut", "nan", "scale", "drain", "preempt", "node"]
)
def test_other_faults_have_their_effect(text: Path, kind: str) -> None:
    fault = f'{{at_step=6, kind="{kind}", island="local-2", for_s=3.0}}'
    config = config_of(text, f"faults.plan=[{fault}]", "sync.quorum=2")
    learned = train(config, Timing(back_s=1.0), 0).figures
    assert learned["faults"] == 1
    assert (real(learned["rejected_contributions"]) > 0) == (kind in ("nan", "scale"))
    assert np.isfinite(real(learned["heldout_loss"]))


@pytest.mark.long
@pytest.mark.parametrize("mode", ["data-parallel", "diloco"])
def test_thin_link_slows_the_run_without_changing_it(text: Path, mode: str) -> None:
    wide, thin = Timing(), Timing(gbit_s=0.0005)
    config = config_of(text, f"run.mode={mode}", "sync.fragments=1")
    fast, slow = (train(config, timing, 0).figures for timing in (wide, thin))
    assert fast["global_sha256"] == slow["global_sha256"]
    assert real(slow["wall_s"]) > 1.2 * real(fast["wall_s"])
    assert real(slow["goodput"]) < real(fast["goodput"])


@pytest.mark.long
@pytest.mark.parametrize(("overrides", "steps"), [
    (("run.mode=streaming", "sync.overlap=2"), 2.0),
    (("run.mode=diloco", "sync.fragments=1"), 0.0),
    (("sync.overlap=0", f"sync.quorum={ISLANDS}"), 0.0),
])  # fmt: skip
def test_effective_overlap_counts_steps_from_hand_in_to_adoption(
    text: Path, overrides: tuple[str, ...], steps: float
) -> None:
    figures = train(config_of(text, *overrides), AT_ONCE, 0).figures
    assert figures["effective_overlap"] == pytest.approx(steps, abs=0.2)  # at T some come early


def test_higher_latency_gives_a_longer_overlap(text: Path) -> None:
    overlaps = [
        real(train(config_of(text), Timing(latency_s=latency_s), 0).figures["effective_overlap"])
        for latency_s in (0.005, 0.2)
    ]
    assert overlaps[0] < overlaps[1]


def test_refuses_all_faults_that_virtual_time_lacks_at_once(text: Path) -> None:
    plan = ", ".join(f'{{at_step=6, kind="kill", island="{who}"}}' for who in ("syncer", "shard-0"))
    with pytest.raises(UserMistake) as refusal:
        train(config_of(text, f"faults.plan=[{plan}]"), AT_ONCE, 0)
    lines = str(refusal.value).splitlines()
    assert [line.partition(": virtual")[0] for line in lines] == [
        "faults.plan: the kill of syncer at step 6",
        "faults.plan: the kill of shard-0 at step 6",
    ]
    one = '{at_step=6, kind="kill", island="local-0"}'
    with pytest.raises(UserMistake, match="is played without faults"):
        train(config_of(text, f"faults.plan=[{one}]", "run.mode=data-parallel"), AT_ONCE, 0)


def test_written_configuration_is_read_back(text: Path, tmp_path: Path) -> None:
    config, virtual = config_of(text), Virtual(jitter=0.25, look_every=3)
    path = tmp_path / "one.toml"
    path.write_text(written(config, virtual))
    assert load(path) == (config, virtual)
    assert load(path, ["virtual.jitter=0.5"])[1].jitter == 0.5
    entry = enter(
        {"virtual": {"jiter": 1, "step_s": -1}, "sync": {"evry": 2}}, origin="x", overrides=["a.b"]
    )
    told = "\n".join(entry.problems)
    for words in ("virtual.jiter: is not known; did you mean jitter?", "virtual.step_s: must be",
                  "sync.evry", "--set a.b", "islands: there are none"):  # fmt: skip
        assert words in told


def real(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def test_islands_and_seeds_share_compiled_functions(text: Path) -> None:
    config, other = config_of(text), config_of(text, "run.seed=3")
    train(config, AT_ONCE, 0)
    compiled = {**compiled_parts(config).inner._compiled}
    train(other, AT_ONCE, 0)
    assert compiled_parts(other).inner is compiled_parts(config).inner
    assert compiled_parts(other).inner._compiled == compiled
    assert compiled_parts(other).port is compiled_parts(config).port


@pytest.mark.long
def test_auto_interval_follows_the_virtual_link_and_is_refused_without_one(text: Path) -> None:
    """The merges of the run show its H: a run at the default H would have others."""
    auto = ("sync.every=auto", "sync.fragments=8")
    thin = Timing(gbit_s=0.00002)
    config = config_of(text, *auto)
    chosen = with_virtual_interval(config, thin).sync
    assert isinstance(chosen.every, int)
    assert chosen.every > 8
    plain = config_of(text, f"sync.every={chosen.every}", f"sync.fragments={chosen.fragments}")
    assert train(config, thin, 0).figures == train(plain, thin, 0).figures
    with pytest.raises(UserMistake, match=r"virtual\.gbit_s is 0, which is no limit") as refusal:
        train(config, AT_ONCE, 0)
    assert len(str(refusal.value).splitlines()) == 1
