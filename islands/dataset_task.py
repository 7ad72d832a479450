"""A task whose examples are in a dataset with random access: Grain, Hugging Face, PyTorch, a list.

The examples are read one by one when a batch needs them, and never all at once. Their order follows
from the leases and `data.seed`. So a dataset must return the same example for the same number each
time, and in each process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.corpus import HELDOUT, Stream, in_epochs
from islands.data.segments import examples_in
from islands.permutation import permuted
from islands.sources import DataSpec
from islands.task import Batch, Params, Task
from islands.task_helpers import seeded
from islands.user_lines import line_in

HELDOUT_MOST = 10_000
"""The most examples that are held out, whatever `data.heldout_percent` makes of a large dataset."""
NARROW: Mapping[str, type[Any]] = {"int64": np.int32, "uint64": np.uint32, "float64": np.float32}
"""Types that arrays of 64 bits are converted to."""
NO_NUMBERS = "OSUMm"
"""The kinds of NumPy types that are objects, texts and times."""


_Form: TypeAlias = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""The type and the shape of each array of an example."""


class RandomAccess(Protocol):
    """A dataset with random access, such as `grain.MapDataset` or a list.

    An example is a mapping of arrays or numbers by name. All examples have the same names, shapes
    and types; those of 64 bits are converted to 32. Several threads call `__getitem__` at a time if
    the task has `threads`.
    """

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def __getitem__(self, number: int, /) -> Any:
        """Return an example; numbers begin at 0."""
        ...


def dataset_task(
    init: Callable[[jax.Array], Params],
    loss: Callable[..., Any],
    dataset: Callable[[], RandomAccess],
    data: DataSpec,
    *,
    vocabulary: int,
    tokens: Callable[[Batch], int] | None = None,
    name: str = "dataset",
    init_state: Callable[[jax.Array], Any] | None = None,
    eval_loss: Callable[..., Any] | None = None,
    frozen: Callable[[], Any] | None = None,
    threads: int = 1,
) -> Task:
    """Return the task of a model of the examples of a dataset.

    Examples are shuffled anew in each epoch, and those that are held out are drawn by `data.seed`:
    `data.heldout_percent` of them, at least 1 and at most 10,000.

    Args:
        init: A JAX key -> the parameters, a tree of float32 arrays.
        loss: As in `Task.loss`; a batch is a dictionary of arrays [batch, ...].
        dataset: Called once in each process that needs data.
        data: What the task's function was given; `source` has no effect.
        vocabulary: Number of classes or tokens; its logarithm is the loss of a uniform guess.
        tokens: A batch -> the tokens that it trains; by default an example counts as one.
        name: The name in messages.
        init_state: A JAX key -> the state, if there is one (`Task.init_state`).
        eval_loss: As in `Task.eval_loss`.
        frozen: As in `Task.frozen`.
        threads: Examples of a batch that are read at a time.
    """

    @cache
    def read() -> _Dataset:
        return _Dataset.of(dataset(), data, threads)

    return Task(
        name=name,
        vocabulary=vocabulary,
        init=seeded(init),
        loss=loss,
        tokens=tokens or examples_in,
        stream=lambda batch_size: Stream(read(), batch_size, data.seed),
        heldout=lambda batch_size: _Heldout(read(), batch_size),
        stacked=lambda path: False,
        embedding=lambda path: False,
        eval_loss=eval_loss,
        init_state=None if init_state is None else seeded(init_state),
        frozen=frozen,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Dataset:
    """A dataset, of which the first `held` numbers in a random order are held out."""

    examples: RandomAccess
    size: int
    held: int
    spec: DataSpec
    pool: ThreadPoolExecutor | None

    @classmethod
    def of(cls, examples: RandomAccess, spec: DataSpec, threads: int) -> _Dataset:
        """Divide the examples; `UserMistake` if there are too few."""
        size = len(examples)
        held = min(HELDOUT_MOST, max(1, round(size * spec.heldout_percent / 100)))
        if size - held < spec.lease_windows:
            raise UserMistake(
                f"dataset: {size} examples, {held} of them held out, do not fill a lease of "
                f"data.lease_windows = {spec.lease_windows}"
            )
        pool = ThreadPoolExecutor(threads, "dataset") if threads > 1 else None
        return cls(examples, size, held, spec, pool)

    def numbers(self, positions: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Return the examples at these positions of the endless sequence of shuffled epochs."""
        return self._drawn(self.held + in_epochs(positions, self.size - self.held, seed))

    def heldout(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the examples at these places of those that are held out."""
        return self._drawn(places)

    def cut(self, numbers: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Read these examples, and return them as one batch.

        Errors: `ValueError` if an example has other arrays than the first one, or values that no
        batch can have.
        """
        wanted = [int(number) for number in numbers]
        reads = map if self.pool is None else self.pool.map
        read = reads(self.examples.__getitem__, wanted)
        rows = [_arrays(number, each) for number, each in zip(wanted, read, strict=True)]
        first = _form(rows[0])
        for number, row in zip(wanted, rows, strict=True):
            if (form := _form(row)) != first:
                raise ValueError(
                    f"example {number} of the dataset has {_form_text(form)}, and example "
                    f"{wanted[0]} {_form_text(first)}"
                )
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def _drawn(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return permuted(places, self.size, (self.spec.seed, HELDOUT, 0))


class _Heldout(Sequence[Batch]):
    """The held-out examples in batches, each read when it is asked for.

    A smaller last batch is left out, unless it is the only one.
    """

    def __init__(self, examples: _Dataset, batch_size: int) -> None:
        """Read the first batch, so that a wrong example is found before anything starts."""
        self._examples = examples
        self._size = min(batch_size, examples.held)
        try:
            self._first = self._read(0)
        except ValueError as error:
            raise UserMistake(f"{line_in(error)}dataset: {error}") from error

    def __len__(self) -> int:
        return self._examples.held // self._size

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return self._read(at % len(self)) if at % len(self) else self._first

    def _read(self, number: int) -> Batch:
        places = np.arange(number * self._size, (number + 1) * self._size)
        return self._examples.cut(self._examples.heldout(places))


def _arrays(number: int, example: Any) -> dict[str, NDArray[Any]]:
    if not isinstance(example, Mapping) or not example:
        raise ValueError(
            f"an example of the dataset is a {type(example).__name__}: it must be a mapping of "
            "arrays or numbers by name"
        )
    return {str(name): _narrow(number, name, np.asarray(array)) for name, array in example.items()}


def _narrow(number: int, name: object, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of 64 bits as one of 32, as JAX has them.

    Errors: `ValueError` if it holds no numbers, or one that needs more than 32 bits.
    """
    if array.dtype.kind in NO_NUMBERS:
        what = "text" if array.dtype.kind in "SU" else f"values of type {array.dtype}"
        raise ValueError(
            f"example {number} of the dataset has {what} in {name!r}, which no batch can have: "
            "return arrays or numbers only, such as token ids"
        )
    if (narrow := NARROW.get(array.dtype.name)) is None:
        return array
    if array.size and array.dtype.kind in "iu":
        bounds = np.iinfo(narrow)
        for found in (int(array.min()), int(array.max())):
            if not bounds.min <= found <= bounds.max:
                raise ValueError(
                    f"example {number} of the dataset has {found} in {name!r}, which needs more "
                    "than 32 bits: leave it out, or make it smaller"
                )
    return array.astype(narrow)


def _form(example: Mapping[str, NDArray[Any]]) -> _Form:
    return {name: (array.dtype, array.shape) for name, array in example.items()}


def _form_text(form: _Form) -> str:
    return ", ".join(f"{name} {dtype}{[*shape]}" for name, (dtype, shape) in sorted(form.items()))
