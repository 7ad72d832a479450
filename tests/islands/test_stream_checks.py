"""The check of a task's own source of data: each break of the protocol has one message."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from archipelago import Lease, Starved, Task
from archipelago.examples import generated_data
from archipelago.examples.generated_data import Generated
from islands.sources import STDLIB, DataSpec
from islands.stream_checks import stream_problems

LEASE_WINDOWS, BATCH = 8, 12
DATA = DataSpec(STDLIB, None, False, 5.0, 32, 0, LEASE_WINDOWS)
TASK = generated_data.task(DATA)


def told(kind: type, task: Task = TASK, batch_size: int = BATCH) -> list[str]:
    """Return the problems of a source of this class, which makes the example's points."""

    def make(numbers: Any) -> Any:
        return generated_data.points(numbers, 0, 0, inputs=8)

    task = replace(task, stream=lambda size: kind(size, LEASE_WINDOWS, make))
    stream, heldout = task.stream(batch_size), task.heldout(batch_size)[0]
    return stream_problems(task, stream, batch_size, LEASE_WINDOWS, heldout)


class Uncounted(Generated):
    """A source whose `remaining` never falls."""

    def __init__(self, batch_size: int, lease_windows: int, make: Callable[..., Any]) -> None:
        super().__init__(batch_size, lease_windows, make)
        self.added = 0

    def add(self, lease: Lease) -> None:
        super().add(lease)
        self.added += LEASE_WINDOWS

    @property
    def remaining(self) -> int:
        return self.added


class Lengthless(Generated):
    """A source that has nothing left from the start; it has a property alone."""

    @property
    def remaining(self) -> int:
        return 0


class Bare:
    """A source that lacks most of what is needed."""

    def __init__(self, *_: Any) -> None:
        self.batch_size = BATCH

    def next(self) -> Any:
        return {"x": np.zeros((BATCH, 8), np.float32)}


class OfOneLease(Generated):
    """A source whose leases have another length."""

    def __init__(self, batch_size: int, lease_windows: int, make: Callable[..., Any]) -> None:
        super().__init__(batch_size, lease_windows + 1, make)


class Still(Generated):
    """A source whose cursor stays where it was."""

    def next(self) -> Any:
        before = self.cursor
        batch = super().next()
        self.cursor = before
        return batch


class Small(Generated):
    """A source that makes batches of another size."""

    def next(self) -> Any:
        return {name: array[1:] for name, array in super().next().items()}


class Integers(Generated):
    """A source whose inputs have another type than those that are held out."""

    def next(self) -> Any:
        batch = super().next()
        return {**batch, "x": batch["x"].astype(np.int32)}


class Unnamed(Generated):
    """A source whose batches are no dictionaries."""

    def next(self) -> Any:
        return super().next()["x"]


class Doubles(Generated):
    """A source of float64, which JAX turns into float32 as it does the held-out batch."""

    def next(self) -> Any:
        batch = super().next()
        return {**batch, "x": batch["x"].astype(np.float64)}


class Words(Generated):
    """A source of text."""

    def next(self) -> Any:
        super().next()
        return ["no", "arrays"]


class Raises(Generated):
    """A source that breaks at its first batch."""

    def next(self) -> Any:
        raise ZeroDivisionError("of the source")


class Fewer(Generated):
    """A source of batches of half the size."""

    def __init__(self, batch_size: int, lease_windows: int, make: Callable[..., Any]) -> None:
        super().__init__(batch_size // 2, lease_windows, make)


@pytest.mark.parametrize("kind", [Generated, Doubles])
@pytest.mark.parametrize("batch_size", [1, LEASE_WINDOWS, BATCH])
def test_sound_source_has_no_problem(kind: type, batch_size: int) -> None:
    assert told(kind, batch_size=batch_size) == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Bare, "has no `add`, `cursor`, `remaining`: see archipelago.StreamLike"),
        (Fewer, "has batch_size = 6: it must be 12"),
        (OfOneLease, "has remaining = 9 after add() of 1 leases: it must be 8, as a lease has"),
        (Uncounted, "has remaining = 16 after next(), as before it"),
        (Lengthless, "has remaining = 0 after add() of 1 leases"),
        (
            Still,
            "start=0) after next() has consumed 12 windows: it must be Lease(number=1, start=4",
        ),
        (Small, "gives a batch of x float32[11,8], y int32[11], and held-out batches have"),
        (Integers, "gives a batch of x int32[12,8], y int32[12], and held-out batches have"),
        (Unnamed, "gives a batch of float32[12,8], and held-out batches have x float32[12,8]"),
        (Words, "gives a batch that is no tree of arrays, but a list"),
    ],
)
def test_unsound_source_is_refused_by_the_line_of_its_class(kind: type, words: str) -> None:
    (problem,) = told(kind)
    assert words in problem
    line = inspect.getsourcelines(kind)[1]
    assert problem.startswith(
        f"{__file__}:{line}: task generated: stream(12) returns a {kind.__name__}"
    )


def test_error_of_a_source_begins_with_its_line() -> None:
    (problem,) = told(Raises)
    line = inspect.getsourcelines(Raises)[1] + 4
    assert problem.startswith(f"{__file__}:{line}: task generated: stream(12) returns a Raises")
    assert "raises ZeroDivisionError: of the source" in problem


def test_object_that_is_no_source_is_refused_by_the_line_of_the_task() -> None:
    task = replace(TASK, stream=lambda size: iter([size]))  # type: ignore[arg-type]
    (problem,) = stream_problems(
        task, task.stream(BATCH), BATCH, LEASE_WINDOWS, TASK.heldout(BATCH)[0]
    )
    assert problem.startswith(f"{__file__}:")
    assert "has no `batch_size`, `add`, `next`, `cursor`, `remaining`" in problem


def test_held_out_windows_may_have_another_length() -> None:
    """An own loss of the evaluation may even have other arrays."""
    stream, heldout = TASK.stream(BATCH), TASK.heldout(BATCH)[0]
    longer = {name: np.repeat(array, 2, axis=-1) for name, array in heldout.items()}
    assert stream_problems(TASK, stream, BATCH, LEASE_WINDOWS, longer) == []
    other = {"other": heldout}
    own = replace(TASK, eval_loss=lambda params, batch: 0.0)
    assert stream_problems(own, TASK.stream(BATCH), BATCH, LEASE_WINDOWS, other) == []
    (problem,) = stream_problems(TASK, TASK.stream(BATCH), BATCH, LEASE_WINDOWS, other)
    assert "must have the same arrays, axes and types" in problem


def test_class_without_a_source_file_is_named_by_its_code() -> None:
    """A class of a notebook is like this."""
    names: dict[str, Any] = {"Generated": Generated, "__name__": "__main__"}
    text = "\n\nclass Here(Generated):\n    def next(self):\n        return 1\n"
    exec(compile(text, "cell-7", "exec"), names)
    (problem,) = told(names["Here"])
    assert problem.startswith("cell-7:4: task generated: stream(12) returns a Here")


def test_source_that_waits_does_not_hold_up_the_start() -> None:
    """The check ends without a problem; its thread ends with the process."""
    released = threading.Event()

    class Waits(Generated):
        def next(self) -> Any:
            released.wait(60.0)
            return super().next()

    stream = Waits(BATCH, LEASE_WINDOWS, lambda numbers: numbers)
    heldout = TASK.heldout(BATCH)[0]
    assert stream_problems(TASK, stream, BATCH, LEASE_WINDOWS, heldout, longest_s=0.1) == []
    released.set()


def test_example_resumes_at_its_cursor() -> None:
    def read(stream: Any, batches: int) -> list[Any]:
        return [stream.next()["x"] for _ in range(batches)]

    whole, first, second = (TASK.stream(BATCH) for _ in range(3))
    for number in range(6):
        whole.add(Lease(number))
    for number in range(3):
        first.add(Lease(number))
    expected = read(whole, 4)
    begun = read(first, 1)
    cursor = first.cursor
    assert (cursor, first.remaining) == (Lease(1, 4), 12)
    for lease in (cursor, *map(Lease, range(2, 6))):
        second.add(lease)
    assert np.array_equal(np.stack(begun + read(second, 3)), np.stack(expected))
    with pytest.raises(Starved):
        second.next()
