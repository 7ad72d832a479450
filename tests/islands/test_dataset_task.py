"""Tasks on datasets with random access, with Grain itself: order, division, errors, cost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands.dataset_task import HELDOUT_MOST, RandomAccess, dataset_task
from islands.inner import Inner
from islands.task import Task
from islands.trainable import of_loss, shapes_of
from tests.given import data_spec, optimizer_spec

COUNT, LEASE = 100, 16


def loss(params: Any, batch: Any) -> jax.Array:
    logits = jax.nn.log_softmax(batch["x"][:, 1:] @ params["w"] + params["b"])
    return -jnp.take_along_axis(logits, batch["y"][:, None], -1).mean()


def example(number: int) -> dict[str, Any]:
    """Return a point of one of two classes, with its number as first coordinate."""
    return {"x": np.array([number, 4.0 * (number % 2) - 2 + np.sin(number)]), "y": number % 2}


def of_grain() -> RandomAccess:
    return grain.MapDataset.range(COUNT).map(example)


def task_of(dataset: Callable[[], RandomAccess], **more: Any) -> Task:
    data = data_spec("", lease_windows=LEASE, heldout_percent=20.0)
    return dataset_task(
        lambda key: {"w": 0.1 * jax.random.normal(key, (1, 2)), "b": jnp.zeros(2)},
        loss,
        dataset,
        data,
        vocabulary=2,
        **more,
    )


def numbers_of(batch: Any) -> list[int]:
    return batch["x"][:, 0].astype(int).tolist()


@pytest.mark.parametrize("threads", [1, 4])
def test_each_example_is_trained_once_in_an_epoch_or_held_out(threads: int) -> None:
    task = task_of(of_grain, threads=threads)
    batches = task.heldout(5)
    held = [number for batch in batches for number in numbers_of(batch)]
    assert (len(batches), len(held), len({*held})) == (4, 20, 20)
    assert [numbers_of(each) for each in batches[1:3]] == [held[5:10], held[10:15]]
    assert numbers_of(batches[-1]) == held[15:]
    stream, epochs = task.stream(8), list[list[int]]()
    for lease in range(2 * 80 // LEASE):
        stream.add(Lease(lease))
    for _ in range(2):
        epochs.append([number for _ in range(10) for number in numbers_of(stream.next())])
    for epoch in epochs:
        assert sorted(epoch) == sorted({*range(COUNT)} - {*held})
    assert epochs[0] != epochs[1]


def test_batches_have_the_arrays_of_their_examples() -> None:
    task = task_of(of_grain)
    stream = task.stream(8)
    stream.add(Lease(1))
    batch: Any = stream.next()
    assert (batch["x"].dtype, batch["y"].dtype) == (np.float32, np.int32)
    for number, x, y in zip(numbers_of(batch), batch["x"], batch["y"], strict=True):
        np.testing.assert_allclose(x, example(number)["x"], rtol=1e-6)
        assert y == number % 2
    assert task.tokens(batch) == 8
    assert task_of(of_grain, tokens=lambda batch: 3 * len(batch["y"])).tokens(batch) == 24


def test_restored_stream_continues_with_the_next_example() -> None:
    task = task_of(of_grain)
    whole, first, second = (task.stream(4) for _ in range(3))
    for stream in (whole, first):
        stream.add(Lease(2))
    wanted = [numbers_of(whole.next()) for _ in range(4)]
    found = [numbers_of(first.next())]
    second.add(first.cursor)
    found += [numbers_of(second.next()) for _ in range(3)]
    assert found == wanted


def test_task_of_a_dataset_learns() -> None:
    task = task_of(of_grain)
    assert of_loss(task, shapes_of(task), task.heldout(10)[0]) == []
    step = Inner(task, optimizer_spec(learning_rate=0.1, warmup_steps=1, horizon_steps=200))
    state, stream = step.start(task.init(0)), task.stream(8)
    for number in range(20):
        stream.add(Lease(number))
    losses = list[float]()
    for clock in range(40):
        state, measures = step.step(state, stream.next(), clock)
        losses.append(float(measures.loss))
    assert losses[-1] < 0.3 < losses[0]


class Counted:
    """A large dataset that counts its reads, and must be read by two threads at least."""

    def __init__(self, size: int) -> None:
        self.size, self.reads, self.at_once, self.most = size, 0, 0, 0
        self.lock, self.pair = threading.Lock(), threading.Barrier(2, timeout=30)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int, /) -> dict[str, Any]:
        assert 0 <= number < self.size
        with self.lock:
            self.reads, self.at_once = self.reads + 1, self.at_once + 1
            self.most = max(self.most, self.at_once)
        self.pair.wait()  # for another read at the same time
        with self.lock:
            self.at_once -= 1
        return example(number)


def test_large_dataset_is_read_as_batches_need_it() -> None:
    dataset = Counted(10**12)
    task = task_of(lambda: dataset, threads=4)
    held = task.heldout(8)
    assert len(held) == HELDOUT_MOST // 8
    assert dataset.reads == 8, "the first batch only"
    stream = task.stream(8)
    stream.add(Lease(10**6))
    stream.next()
    assert dataset.reads == 16
    assert 1 < dataset.most <= 4


@pytest.mark.parametrize(
    ("examples", "says"),
    [
        ([example(n) for n in range(10)], "10 examples, 2 of them held out, do not fill a lease"),
        ([*range(COUNT)], "an example of the dataset is a int: it must be a mapping"),
        ([{}] * COUNT, "an example of the dataset is a dict"),
        (
            [{"x": np.zeros(1 + n % 2, "f4")} for n in range(COUNT)],
            r"has x float32\[[12]\], and example \d+ x float32\[[12]\]",
        ),
        ([{"x": 1} if n % 2 else {"y": 1} for n in range(COUNT)], r"has [xy] int32\[\]"),
        ([{"x": 1, "t": "word"}] * COUNT, r"example \d+ of the dataset has text in 't'"),
        ([{"x": None}] * COUNT, "has values of type object in 'x'"),
        ([{"x": 2**31}] * COUNT, "has 2147483648 in 'x', which needs more than 32 bits"),
        ([{"x": np.array([0, -(2**40)])}] * COUNT, "has -1099511627776 in 'x'"),
    ],
)
def test_wrong_examples_are_refused_before_anything_starts(examples: list[Any], says: str) -> None:
    with pytest.raises(UserMistake, match=says):
        task_of(lambda: examples).heldout(8)
