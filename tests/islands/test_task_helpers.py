"""Short ways to a task: the same batches as the long way, and examples used once in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands.inner import Inner
from islands.loop_task import loop_task
from islands.state_tree import in_one_tree
from islands.task import Task, load_task
from islands.task_helpers import supervised_task, text_task
from islands.trainable import of_loss, of_parameters, shapes_of
from tests.given import data_spec, optimizer_spec, sums

COUNT, LEASE = 100, 16


def init(key: jax.Array) -> dict[str, jax.Array]:
    return {"embedding": jax.random.normal(key, (256, 8)), "out": jnp.zeros((8, 256))}


def text_loss(params: Any, batch: Any) -> jax.Array:
    logits = jax.nn.log_softmax(params["embedding"][batch[:, :-1]] @ params["out"])
    return -jnp.take_along_axis(logits, batch[:, 1:, None], -1).mean()


def test_task_of_a_text_has_the_batches_of_a_preset(tmp_path: Path) -> None:
    data = data_spec(str(sums(tmp_path)), window=16, lease_windows=LEASE)
    task, preset = text_task(init, text_loss, data), load_task("byte-tiny", None, {}, data)
    shapes = shapes_of(task)
    assert of_parameters(task, shapes) + of_loss(task, shapes, task.heldout(2)[0]) == []
    streams = [each.stream(4) for each in (task, preset)]
    for stream in streams:
        stream.add(Lease(3))
    for _ in range(LEASE // 4):
        one, other = (stream.next() for stream in streams)
        np.testing.assert_array_equal(one, other)
        assert task.tokens(one) == 4 * 16
    assert task.embedding("embedding")
    assert not task.embedding("out")
    first, again = task.init(3)["embedding"], task.init(3)["embedding"]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, task.init(4)["embedding"])


def examples() -> dict[str, np.ndarray]:
    """Return points of two classes, with a number of their own as first coordinate."""
    numbers = np.arange(COUNT)
    y = (numbers % 2).astype("i4")
    x = np.stack([numbers, 4 * y - 2 + np.sin(numbers)], 1).astype("f4")
    return {"x": x, "y": y}


def loss(params: Any, state: Any, batch: Any, key: Any) -> tuple[jax.Array, Any]:
    seen = batch["x"][:, 1:]
    logits = jax.nn.log_softmax(seen @ params["w"] + params["b"])
    right = jnp.mean(logits.argmax(-1) == batch["y"])
    nats = -jnp.take_along_axis(logits, batch["y"][:, None], -1).mean()
    mean = state["mean"] if key is None else 0.9 * state["mean"] + 0.1 * seen.mean(0)
    return nats, ({"mean": mean}, {"accuracy": right})


@pytest.fixture
def points() -> Task:
    data = data_spec("", lease_windows=LEASE, heldout_percent=20.0)
    return in_one_tree(
        supervised_task(
            lambda key: {"w": 0.1 * jax.random.normal(key, (1, 2)), "b": jnp.zeros(2)},
            loss,
            examples,
            data,
            classes=2,
            init_state=lambda key: {"mean": jnp.zeros(1)},
        )
    )


def numbers_of(batch: Any) -> list[int]:
    return batch["x"][:, 0].astype(int).tolist()


def test_each_example_is_trained_once_in_an_epoch_or_held_out(points: Task) -> None:
    held = [number for batch in points.heldout(5) for number in numbers_of(batch)]
    assert len(held) == len(set(held)) == 20
    stream, epochs = points.stream(8), list[list[int]]()
    for lease in range(2 * 80 // LEASE):
        stream.add(Lease(lease))
    for _ in range(2):
        epochs.append([number for _ in range(10) for number in numbers_of(stream.next())])
    for epoch in epochs:
        assert sorted(epoch) == sorted({*range(COUNT)} - {*held})
    assert epochs[0] != epochs[1]
    assert stream.remaining == 0


def test_task_of_examples_learns(points: Task) -> None:
    shapes = shapes_of(points)
    assert of_loss(points, shapes, points.heldout(10)[0]) == []
    step = Inner(points, optimizer_spec(learning_rate=0.1, warmup_steps=1, horizon_steps=200))
    state, stream = step.start(points.init(0)), points.stream(8)
    for number in range(20):
        stream.add(Lease(number))
    losses = list[float]()
    for clock in range(40):
        state, measures = step.step(state, stream.next(), clock)
        losses.append(float(measures.loss))
    assert losses[-1] < 0.3 < losses[0]


def test_host_reads_only_its_own_rows(points: Task) -> None:
    streams: list[Any] = [points.stream(8) for _ in range(2)]
    streams[1].rows = np.arange(8) >= 4
    for stream in streams:
        stream.add(Lease(0))
    whole, half = (stream.next() for stream in streams)
    np.testing.assert_array_equal(half["x"][4:], whole["x"][4:])
    assert not half["x"][:4].any()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: {"x": np.zeros(9), "y": np.zeros(8)}, r"one length .*'x': 9, 'y': 8"),
        (lambda: {"x": np.zeros(9)}, "9 examples, 2 of them held out, do not fill a lease"),
    ],
)
def test_unusable_examples_are_refused(made: Callable[[], Any], says: str) -> None:
    data = data_spec("", lease_windows=LEASE, heldout_percent=20.0)
    task = supervised_task(init, text_loss, made, data, classes=2)
    with pytest.raises(UserMistake, match=says):
        task.stream(2)


def test_one_beginning_of_a_path_may_be_a_text(tmp_path: Path) -> None:
    data = data_spec(str(sums(tmp_path)), window=16)
    text = text_task(init, text_loss, data, embedding="wte", stacked="layers")
    loop = loop_task(
        lambda: None, lambda seed: {}, lambda params, batch: 0.0, data, embedding="wte"
    )
    for task in (text, loop):
        assert [path for path in ("wte/w", "w", "tail", "encoder") if task.embedding(path)] == [
            "wte/w"
        ]
    assert [path for path in ("layers/w", "l", "scale") if text.stacked(path)] == ["layers/w"]


def test_module_that_ends_python_is_reported_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "script_without_guard.py"
    path.write_text("import sys\n\nsys.exit(2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserMistake, match=r"script_without_guard.py:3: .* raises SystemExit: 2"):
        load_task(None, "script_without_guard:task", {}, data_spec(str(tmp_path)))
