"""Tests of the check whether a task reads its held-out data from the source of `[data]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinator.errors import UserMistake
from islands.dataset_task import dataset_task
from islands.source_use import reads_source
from islands.sources import DataSpec
from islands.task import Task
from islands.task_helpers import supervised_task, text_task
from tests.given import data_spec

MISSING = data_spec("/does/not/exist")
Make = Callable[[DataSpec], Task]


def init(key: jax.Array) -> Any:
    return {"w": jax.random.normal(key, (2, 2))}


def loss(params: Any, batch: Any) -> jax.Array:
    return jnp.mean(params["w"])


def arrays() -> dict[str, Any]:
    return {"x": np.ones((2000, 2), np.float32)}


def rows() -> list[Any]:
    return [{"x": 1.0}] * 2000


def with_own_examples(data: DataSpec) -> Task:
    return supervised_task(init, loss, arrays, data, classes=2)


def with_own_dataset(data: DataSpec) -> Task:
    return dataset_task(init, loss, rows, data, vocabulary=2)


def of_text(data: DataSpec) -> Task:
    return text_task(init, loss, data)


def with_examples_of_the_source(data: DataSpec) -> Task:
    def examples() -> dict[str, Any]:
        try:
            return arrays() | {"y": np.full(2000, len(data.source))}
        except Exception:  # noqa: BLE001 - a task of a user may do so
            return arrays()

    return supervised_task(init, loss, examples, data, classes=2)


@pytest.mark.parametrize("make", [with_own_examples, with_own_dataset])
def test_task_with_its_own_data_does_not_read_the_source(make: Make) -> None:
    assert not reads_source(make, MISSING, 16)


@pytest.mark.parametrize("make", [of_text, with_examples_of_the_source])
def test_task_that_reads_the_source_is_found_although_it_is_gone(make: Make) -> None:
    assert reads_source(make, MISSING, 16)


def test_errors_of_the_task_are_reported() -> None:
    few = data_spec(lease_windows=10_000)
    with pytest.raises(UserMistake, match="do not fill a lease"):
        reads_source(with_own_examples, few, 16)
