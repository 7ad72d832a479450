"""Several corpora as one, in fixed shares.

The weights become whole numbers of windows in a pattern of `PATTERN` windows. Each repetition of
the pattern is shuffled by the seed, so any stretch of the endless order has nearly the right
shares, and every repetition has them exactly. Within its share, each source goes through its own
shuffled epochs. A window's source and number follow from its position alone, so a lease and a
cursor mean the same on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.corpus import HELDOUT, TRAIN, Corpus, in_epochs, joined_batches, windows_in
from islands.permutation import permuted
from islands.sources import DataSpec

PATTERN = 1000
"""Windows of the pattern; a weight is rounded to a thousandth."""
ORDER = 2
"""The order that the permutation of a pattern belongs to; part of its seed."""


class MixedCorpus:
    """Several corpora as one."""

    def __init__(self, spec: DataSpec, corpora: Sequence[Corpus], weights: Sequence[float]) -> None:
        """Mix corpora.

        Errors: `UserMistake` if a weight is not positive, or so small that it has no window.
        """
        self.spec = spec
        self.corpora = tuple(corpora)
        self._counts = counts_of(weights)
        self._firsts = np.cumsum(self._counts) - self._counts
        sizes = [corpus.windows for corpus in corpora]
        self._starts = np.cumsum([0, *sizes[:-1]])
        self._sizes = np.array(sizes, np.int64)

    @property
    def windows(self) -> int:
        """Training windows of all sources, each counted once."""
        return int(self._sizes.sum())

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each source in the windows that are trained on."""
        return tuple((self._counts / PATTERN).tolist())

    @property
    def fingerprint(self) -> str:
        """A hash that is equal on two machines exactly if they mix the same tokens alike."""
        digest = hashlib.sha256(repr(self._counts.tolist()).encode())
        for corpus in self.corpora:
            digest.update(corpus.fingerprint.encode())
        return digest.hexdigest()[:16]

    def numbers(self, positions: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Return the windows at these positions; those of a source follow those of the one before.

        The result is the number of a window among those of all sources.
        """
        sources, places = self._sources(positions, seed, TRAIN)
        found = np.empty_like(positions)
        for number, size in enumerate(self._sizes.tolist()):
            is_here = sources == number
            inside = in_epochs(places[is_here], size, seed)
            found[is_here] = self._starts[number] + inside
        return found

    def cut(self, numbers: NDArray[np.int64]) -> Any:
        """Return these training windows, as the sources do."""
        sources = np.searchsorted(self._starts, numbers, "right") - 1
        found, order = list[Any](), list[NDArray[np.int64]]()
        for number, corpus in enumerate(self.corpora):
            rows = np.flatnonzero(sources == number)
            if len(rows):
                found.append(corpus.cut(numbers[rows] - self._starts[number]))
                order.append(rows)
        return joined_batches(found, order)

    def heldout_batches(self, batch_size: int) -> HeldOutMixture:
        """Return held-out windows of all sources in the shares of the mixture, in batches."""
        return HeldOutMixture(self, batch_size)

    def heldout_windows(self) -> int:
        """Return how many held-out windows keep the shares of the mixture, none of them twice.

        These are whole repetitions of the pattern. If a source has too few windows for one, they
        are the beginning of the pattern, up to the place where that source would need one more.
        """
        sizes = [windows_in(corpus.heldout, self.spec.window) for corpus in self.corpora]
        there = np.array(sizes, np.int64)
        if whole := int(np.min(there // self._counts)):
            return whole * PATTERN
        order, ranks = self._pattern((self.spec.seed, ORDER, HELDOUT, 0))
        return int(np.argmax(ranks >= there[order]))

    def heldout_cut(self, positions: NDArray[np.int64]) -> Any:
        """Return the held-out windows at these positions of their fixed order."""
        sources, places = self._sources(positions, self.spec.seed, HELDOUT)
        found, order = list[Any](), list[NDArray[np.int64]]()
        for number, corpus in enumerate(self.corpora):
            rows = np.flatnonzero(sources == number)
            if len(rows):
                count = windows_in(corpus.heldout, self.spec.window)
                chosen = permuted(places[rows] % count, count, (self.spec.seed, HELDOUT, number))
                found.append(corpus.heldout_cut(chosen))
                order.append(rows)
        return joined_batches(found, order)

    def _sources(
        self, positions: NDArray[np.int64], seed: int, use: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each position, and its place in that source's endless order."""
        repetitions, places = np.divmod(positions, PATTERN)
        sources, inside = np.empty_like(places), np.empty_like(places)
        for repetition in np.unique(repetitions).tolist():
            is_here = repetitions == repetition
            order, ranks = self._pattern((seed, ORDER, use, repetition))
            sources[is_here] = here = order[places[is_here]]
            inside[is_here] = repetition * self._counts[here] + ranks[places[is_here]]
        return sources, inside

    def _pattern(self, seed: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each place of a pattern, and how many places it had before."""
        mixed = permuted(np.arange(PATTERN), PATTERN, seed)
        order = np.searchsorted(self._firsts, mixed, "right") - 1
        ranks = np.empty_like(order)
        for source, count in enumerate(self._counts.tolist()):
            ranks[order == source] = np.arange(count)
        return order, ranks


class HeldOutMixture(Sequence[Any]):
    """The held-out batches of a mixture, cut on demand, equal on every call and machine."""

    def __init__(self, corpus: MixedCorpus, batch_size: int) -> None:
        self._corpus, self._batch_size = corpus, batch_size
        self._windows = corpus.heldout_windows()

    def __len__(self) -> int:
        return max(1, self._windows // self._batch_size)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        first = range(len(self))[index] * self._batch_size
        last = min(first + self._batch_size, self._windows)
        return self._corpus.heldout_cut(np.arange(first, last, dtype=np.int64))


def counts_of(weights: Sequence[float]) -> NDArray[np.int64]:
    """Return the windows of each source in a pattern; they add up to `PATTERN`.

    Errors: `UserMistake` if a weight is not positive, or too small for one window.
    """
    given = np.array(weights, np.float64)
    if not len(given) or not np.all(np.isfinite(given)) or np.any(given <= 0):
        raise UserMistake(f"data.mixture: the weights {list(weights)} must be positive numbers")
    exact = given / given.sum() * PATTERN
    counts = np.floor(exact).astype(np.int64)
    largest_rests = np.argsort(-(exact - counts), kind="stable")
    counts[largest_rests[: PATTERN - int(counts.sum())]] += 1
    if np.any(counts == 0):
        small = float(given[counts == 0][0] / given.sum())
        raise UserMistake(
            f"data.mixture: a weight of {small:.2g} of all is less than one window in {PATTERN}: "
            "give it more, or leave the source out"
        )
    return counts
