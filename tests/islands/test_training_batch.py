"""Tests of the batch that a step is compiled for, and of which rows a host reads."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import archipelago
from cluster.workers.assembly import stream_of
from coordinator.protocol import Lease
from islands.corpus import Stream
from islands.guarded_task import guarded
from islands.task import Task
from islands.training_batch import reads_own_rows, training_batch
from tests.given import data_spec

BATCH, PAD = 32, 0


def examples(count: int) -> dict[str, np.ndarray]:
    """Return rows of one to eight numbers, padded with zeros."""
    rng = np.random.default_rng(3)
    ids = rng.integers(1, 9, (count, 8), np.int32)
    ids[np.arange(8) >= rng.integers(1, 9, (count, 1))] = PAD
    return {"ids": ids}


class Rows:
    """A dataset with random access."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays["ids"])

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        return {name: array[number] for name, array in self._arrays.items()}


def init(key: jax.Array) -> dict[str, jax.Array]:
    return {"w": jax.random.normal(key, (8,))}


def loss(params: Any, batch: Any) -> jax.Array:
    return jnp.mean((batch["ids"] @ params["w"]) ** 2)


def task_of(count: int, tokens: Any = None) -> Task:
    arrays = examples(count)
    return guarded(
        archipelago.dataset_task(
            init, loss, lambda: Rows(arrays), data_spec(), vocabulary=9, tokens=tokens
        )
    )


def supervised(count: int) -> Task:
    return guarded(
        archipelago.supervised_task(init, loss, lambda: examples(count), data_spec(), classes=2)
    )


@pytest.mark.parametrize("make", [task_of, supervised])
def test_small_held_out_part_is_repeated_to_a_whole_batch(make: Any) -> None:
    """The step was once compiled for 25 rows, which four parts or two devices do not divide."""
    task = make(500)
    short, batch = task.heldout(BATCH)[0]["ids"], training_batch(task, BATCH)["ids"]
    assert short.shape == (25, 8)
    np.testing.assert_array_equal(batch, short[np.arange(BATCH) % 25])
    stream = task.stream(BATCH)
    assert isinstance(stream, Stream)
    large = make(2000)
    np.testing.assert_array_equal(
        training_batch(large, BATCH)["ids"], large.heldout(BATCH)[0]["ids"]
    )


def test_batch_of_a_stream_of_the_users_own_is_not_changed() -> None:
    """The first axis of such a batch may be time."""
    batch = {"ids": np.zeros((4, BATCH), np.int32)}
    own = guarded(replace(task_of(500), heldout=lambda size: [batch]))
    assert training_batch(own, BATCH) is batch


def padded(batch: Any) -> int:
    return int((batch["ids"] != PAD).sum())


@pytest.mark.parametrize("tokens", [None, padded])
def test_tokens_of_an_island_of_several_hosts_are_those_of_the_whole_batch(tokens: Any) -> None:
    """The first host once counted the zeros of the rows that it does not read."""
    task = task_of(2000, tokens)
    assert reads_own_rows(task) is (tokens is None)

    def batch_of(shared: bool) -> Any:
        rows = np.arange(BATCH) < BATCH // 2
        devices = SimpleNamespace(shared=shared, rows=lambda size: rows)
        parts: Any = SimpleNamespace(task=task, inner=SimpleNamespace(devices=devices))
        stream = stream_of(parts, BATCH)
        stream.add(Lease(0))
        return stream.next()

    whole, shared = batch_of(shared=False), batch_of(shared=True)
    assert task.tokens(shared) == task.tokens(whole)
    mine = whole["ids"][: BATCH // 2]
    np.testing.assert_array_equal(shared["ids"][: BATCH // 2], mine)
    if tokens is None:
        assert not shared["ids"][BATCH // 2 :].any(), "they are not read"
