"""Real text as a stream of tokens, with a cursor that can be saved and restored.

A source is a set of files. Some of them are held out; the rest, joined, are cut into *windows* of
`window + 1` tokens that share one token with their neighbour, so that every token is predicted
once per epoch. Windows are shuffled by seed and epoch, and that endless order is handed out in
*leases* (docs/protocol.md): whoever knows source, seed and a lease's number finds the same windows.
Neither tokens nor order are ever whole in memory.

No JAX in here: the configuration's door reads a corpus too, and needs no accelerator for it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import ArchipelagoError
from coordinator.protocol import Lease
from islands.permutation import permuted
from islands.sources import (
    PIECE_BYTES,
    DataSpec,
    Tokens,
)

Windows = NDArray[np.int32]
"""A batch, [batch, window + 1]: position i + 1 is to be predicted from the positions up to i."""
AT_ONCE = 1024
"""Windows of a lease whose places in the order are found at once."""
TRAIN, HELDOUT = 0, 1
"""Which order a permutation belongs to; part of its seed."""


class Starved(ArchipelagoError):
    """A batch was wanted of a stream whose leases are used up; nothing was consumed."""


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """The tokens of a source, [length] each, mapped; `spec` says how they are cut and shuffled."""

    spec: DataSpec
    train: Tokens
    heldout: Tokens

    @property
    def windows(self) -> int:
        """Training windows in one epoch."""
        return windows_in(self.train, self.spec.window)

    @property
    def fingerprint(self) -> str:
        """Equal on two machines exactly if they hold the same tokens, cut the same way."""
        digest = hashlib.sha256(repr((self.spec.window, self.train.dtype.str)).encode())
        for tokens in (self.train, self.heldout):
            digest.update(len(tokens).to_bytes(8, "little"))
            for first in range(0, len(tokens), PIECE_BYTES):
                digest.update(tokens[first : first + PIECE_BYTES].tobytes())
        return digest.hexdigest()[:16]

    def numbers(self, positions: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Which windows are at these positions of the endless sequence of shuffled epochs."""
        epochs, places = np.divmod(positions, self.windows)
        index = np.empty_like(positions)
        for epoch in np.unique(epochs):
            inside, order = epochs == epoch, (seed, TRAIN, int(epoch))
            index[inside] = permuted(places[inside], self.windows, order)
        return index

    def cut(self, numbers: NDArray[np.int64]) -> Windows:
        """These training windows."""
        return _gather(self.train, numbers, self.spec.window)

    def heldout_batches(self, batch_size: int) -> HeldOut:
        """All held-out windows in batches, in a fixed order; any few are a fair sample of all."""
        return HeldOut(self, batch_size)


class HeldOut(Sequence[Windows]):
    """Held-out batches, cut on demand, the same on every call and machine.

    Windows are shuffled once, so that the first few batches already stand for all files. A last
    batch that would be smaller is left out, unless it is the only one.
    """

    def __init__(self, corpus: Corpus, batch_size: int) -> None:
        self._corpus, self._batch_size = corpus, batch_size
        self._windows = windows_in(corpus.heldout, corpus.spec.window)

    def __len__(self) -> int:
        return max(1, self._windows // self._batch_size)

    @overload
    def __getitem__(self, index: int) -> Windows: ...
    @overload
    def __getitem__(self, index: slice) -> list[Windows]: ...
    def __getitem__(self, index: int | slice) -> Windows | list[Windows]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        first = range(len(self))[index] * self._batch_size
        places = np.arange(first, min(first + self._batch_size, self._windows))
        chosen = permuted(places, self._windows, (self._corpus.spec.seed, HELDOUT, 0))
        return _gather(self._corpus.heldout, chosen, self._corpus.spec.window)


class Stream:
    """Training batches out of leases, one after another; one learner's reader.

    To restore one, make a new one and `add` the saved `cursor`, then the leases behind it.
    """

    def __init__(self, corpus: Corpus, batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        self.rows: NDArray[np.bool_] | None = None  # that are read, of each batch; None: all
        self._corpus, self._seed = corpus, seed
        self._length = corpus.spec.lease_windows
        self._leases: deque[Lease] = deque()
        self._known = (-1, -1), np.zeros(0, np.int64)  # of which lease and block, its windows

    def add(self, lease: Lease) -> None:
        """Queue a lease behind those held; `ValueError` if it cannot be one, or is held already."""
        if lease.number < 0 or not 0 <= lease.start <= self._length:
            raise ValueError(f"{lease} is none of the leases of {self._length} windows")
        if any(held.number == lease.number for held in self._leases):
            raise ValueError(f"{lease} is held already: {list(self._leases)}")
        self._leases.append(lease)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The lease being read, with what is consumed of it, and those queued behind it."""
        return tuple(self._leases)

    @property
    def cursor(self) -> Lease:
        """The lease read last and how much of it is consumed; possibly all of it."""
        if not self._leases:
            raise Starved("a stream without any lease has no cursor: add a lease first")
        return self._leases[0]

    @property
    def remaining(self) -> int:
        """Windows left in all the leases held."""
        return sum(self._length - lease.start for lease in self._leases)

    def next(self) -> Windows:
        """Consume the next `batch_size` windows, across leases where need be; or `Starved`. Those
        that are not to be read are zeros."""
        if (left := self.remaining) < self.batch_size:
            raise Starved(f"{self.batch_size} windows wanted, {left} left: add a lease")
        numbers: list[NDArray[np.int64]] = []
        missing = self.batch_size
        while missing:
            lease = self._leases[0]
            if lease.start == self._length:  # kept until now, for the cursor
                self._leases.popleft()
                continue
            taken = min(missing, self._length - lease.start)
            found = self._numbers(lease)[:taken]
            taken = len(found)
            numbers.append(found)
            self._leases[0] = replace(lease, start=lease.start + taken)
            missing -= taken
        return self._read(np.concatenate(numbers))

    def _read(self, numbers: NDArray[np.int64]) -> Windows:
        if self.rows is None:
            return self._corpus.cut(numbers)
        read = self._corpus.cut(numbers[self.rows])
        batch = np.zeros((numbers.size, read.shape[1]), read.dtype)
        batch[self.rows] = read
        return batch

    def _numbers(self, lease: Lease) -> NDArray[np.int64]:
        """The windows that come next in a lease, some of them: many cost as much as few."""
        block = lease.start // AT_ONCE
        if self._known[0] != (lease.number, block):
            first = lease.number * self._length
            start, stop = block * AT_ONCE, min((block + 1) * AT_ONCE, self._length)
            positions = np.arange(first + start, first + stop, dtype=np.int64)
            self._known = (lease.number, block), self._corpus.numbers(positions, self._seed)
        return self._known[1][lease.start - block * AT_ONCE :]


def windows_in(tokens: Tokens, window: int) -> int:
    """Return how many whole windows there are."""
    return max(0, len(tokens) - 1) // window


def _gather(tokens: Tokens, windows: NDArray[np.int64], window: int) -> Windows:
    index = windows[:, None] * window + np.arange(window + 1)
    return tokens[index].astype(np.int32)
