"""Real text as a stream of tokens, with a cursor that can be saved and restored.

A source is a set of files. Some of them are held out. The rest, joined, are cut into *windows* of
`window + 1` tokens that share one token with their neighbour, so that every token is predicted once
per epoch. Windows are shuffled by seed and epoch, and that endless order is handed out in *leases*
(docs/explanation/protocol.md). Source, seed and a lease's number determine the windows of the
lease. Neither tokens nor order are ever whole in memory.

This module uses no JAX: the checks of a configuration read a corpus too, without an accelerator.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import ArchipelagoError
from coordinator.protocol import Lease
from islands.data.joined_tokens import JoinedTokens
from islands.data.segments import LOSS_MASK, TOKENS, with_segments
from islands.permutation import permuted
from islands.sources import DataSpec

Windows = NDArray[np.int32]
"""A batch, [batch, window + 1]: position i + 1 is predicted from the positions up to i."""
WindowBatch: TypeAlias = Any
"""Windows, or a mapping of arrays with them (`islands.data.segments`)."""
CorpusTokens: TypeAlias = Any
"""`Tokens`, or `JoinedTokens` if they are read where they are."""
PIECE_TOKENS = 2**24
"""Tokens that are in memory at once for a fingerprint."""
AT_ONCE = 1024
"""Windows of a lease whose places in the order are computed at once."""
TRAIN, HELDOUT = 0, 1
"""The order that a permutation belongs to; part of its seed."""


class Starved(ArchipelagoError):
    """A request for a batch from a stream whose leases are used up; nothing was consumed."""


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """The tokens of a source, [length] each, memory-mapped."""

    spec: DataSpec
    """The cut and shuffle of the tokens."""
    train: CorpusTokens
    """Tokens for training."""
    heldout: CorpusTokens
    """Tokens that are held out."""
    end_token: int | None = None
    """The id behind each document; None: it is not known."""
    masked: bool = False
    """Whether the tokens are 2 x id, plus 1 for a token that the loss counts."""
    gives_mask: bool = False
    """Whether batches have a loss mask although all tokens are counted, as part of a mixture."""

    @property
    def windows(self) -> int:
        """Training windows in one epoch."""
        return windows_in(self.train, self.spec.window)

    @property
    def fingerprint(self) -> str:
        """A hash that is equal on two machines exactly if they cut the same tokens alike."""
        digest = hashlib.sha256(repr((self.spec.window, self.train.dtype.str)).encode())
        for tokens in (self.train, self.heldout):
            digest.update(len(tokens).to_bytes(8, "little"))
            if isinstance(tokens, JoinedTokens):
                digest.update(tokens.fingerprint.encode())
                continue
            for first in range(0, len(tokens), PIECE_TOKENS):
                digest.update(tokens[first : first + PIECE_TOKENS].tobytes())
        return digest.hexdigest()[:16]

    def numbers(self, positions: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Return the windows at these positions of the endless sequence of shuffled epochs."""
        return in_epochs(positions, self.windows, seed)

    def cut(self, numbers: NDArray[np.int64]) -> WindowBatch:
        """Return these training windows."""
        return self._batch(self.train, numbers)

    def heldout_cut(self, numbers: NDArray[np.int64]) -> WindowBatch:
        """Return these held-out windows."""
        return self._batch(self.heldout, numbers)

    def _batch(self, tokens: CorpusTokens, numbers: NDArray[np.int64]) -> WindowBatch:
        stored = _gather(tokens, numbers, self.spec.window)
        windows = stored >> 1 if self.masked else stored
        batch: WindowBatch = windows
        if self.spec.separate_documents and self.end_token is not None:
            batch = with_segments(windows, self.end_token)
        if self.masked or self.gives_mask:
            mask = stored % 2 == 1 if self.masked else np.ones(stored.shape, np.bool_)
            batch = {TOKENS: windows} | (batch if isinstance(batch, dict) else {})
            batch[LOSS_MASK] = mask
        return batch

    def heldout_batches(self, batch_size: int) -> HeldOut:
        """Return all held-out windows in batches, in a fixed order; any few are a fair sample."""
        return HeldOut(self, batch_size)


class HeldOut(Sequence[WindowBatch]):
    """The held-out batches, cut on demand, equal on every call and machine.

    Windows are shuffled once, so that the first few batches already represent all files. A last
    batch that would be smaller is left out, unless it is the only one.
    """

    def __init__(self, corpus: Corpus, batch_size: int) -> None:
        self._corpus, self._batch_size = corpus, batch_size
        self._windows = windows_in(corpus.heldout, corpus.spec.window)

    def __len__(self) -> int:
        return max(1, self._windows // self._batch_size)

    @overload
    def __getitem__(self, index: int) -> WindowBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[WindowBatch]: ...
    def __getitem__(self, index: int | slice) -> WindowBatch:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        first = range(len(self))[index] * self._batch_size
        places = np.arange(first, min(first + self._batch_size, self._windows))
        chosen = permuted(places, self._windows, (self._corpus.spec.seed, HELDOUT, 0))
        return self._corpus.heldout_cut(chosen)


class WindowSource(Protocol):
    """A source of training windows by number: a `Corpus`, a mixture, or examples."""

    @property
    def spec(self) -> DataSpec:
        """The cut and shuffle."""
        ...

    def numbers(self, positions: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Return the windows at these positions of an endless order."""
        ...

    def cut(self, numbers: NDArray[np.int64]) -> WindowBatch:
        """Return these windows."""
        ...


class Stream:
    """Training batches out of leases, one after another; one learner's reader.

    To restore a stream, make a new one and `add` the saved `cursor`, then the leases behind it.
    """

    def __init__(self, corpus: WindowSource, batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        self.rows: NDArray[np.bool_] | None = None  # which rows of each batch are read; None: all
        self._corpus, self._seed = corpus, seed
        self._length = corpus.spec.lease_windows
        self._leases: deque[Lease] = deque()
        self._known = (-1, -1), np.zeros(0, np.int64)  # lease and block, and its windows

    def add(self, lease: Lease) -> None:
        """Queue a lease behind those held.

        Errors: `ValueError` if it is no lease of this corpus, or is held already.
        """
        if lease.number < 0 or not 0 <= lease.start <= self._length:
            raise ValueError(f"{lease} is none of the leases of {self._length} windows")
        if any(held.number == lease.number for held in self._leases):
            raise ValueError(f"{lease} is held already: {list(self._leases)}")
        self._leases.append(lease)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The lease being read, with its windows consumed so far, and those queued behind it."""
        return tuple(self._leases)

    @property
    def cursor(self) -> Lease:
        """The lease read last, with the windows of it consumed so far, possibly all."""
        if not self._leases:
            raise Starved("a stream without any lease has no cursor: add a lease first")
        return self._leases[0]

    @property
    def remaining(self) -> int:
        """Windows left in all the leases held."""
        return sum(self._length - lease.start for lease in self._leases)

    def next(self) -> WindowBatch:
        """Consume the next `batch_size` windows, across leases if needed.

        Windows that this host does not read (`rows`) are zeros.

        Errors: `Starved` if the leases do not hold as many.
        """
        if (left := self.remaining) < self.batch_size:
            raise Starved(f"{self.batch_size} windows wanted, {left} left: add a lease")
        numbers: list[NDArray[np.int64]] = []
        pending = self.batch_size
        while pending:
            lease = self._leases[0]
            if lease.start == self._length:  # kept until now, for the cursor
                self._leases.popleft()
                continue
            taken = min(pending, self._length - lease.start)
            windows = self._numbers(lease)[:taken]
            taken = len(windows)
            numbers.append(windows)
            self._leases[0] = replace(lease, start=lease.start + taken)
            pending -= taken
        return self._read(np.concatenate(numbers))

    def _read(self, numbers: NDArray[np.int64]) -> WindowBatch:
        if self.rows is None:
            return self._corpus.cut(numbers)
        read, rows = self._corpus.cut(numbers[self.rows]), np.flatnonzero(self.rows)
        return joined_batches([read], [rows], numbers.size)

    def _numbers(self, lease: Lease) -> NDArray[np.int64]:
        """Return the numbers of the next windows of a lease, up to the end of a block of `AT_ONCE`.

        A whole block is computed and kept, because it costs about as much as a single window.
        """
        block = lease.start // AT_ONCE
        if self._known[0] != (lease.number, block):
            first = lease.number * self._length
            start, stop = block * AT_ONCE, min((block + 1) * AT_ONCE, self._length)
            positions = np.arange(first + start, first + stop, dtype=np.int64)
            self._known = (lease.number, block), self._corpus.numbers(positions, self._seed)
        return self._known[1][lease.start - block * AT_ONCE :]


def in_epochs(positions: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers below `size` at these positions of an endless sequence of epochs.

    Each epoch has every number once, in an order of its own.
    """
    epochs, places = np.divmod(positions, size)
    index = np.empty_like(positions)
    for epoch in np.unique(epochs):
        in_epoch, order = epochs == epoch, (seed, TRAIN, int(epoch))
        index[in_epoch] = permuted(places[in_epoch], size, order)
    return index


def joined_batches(
    batches: Sequence[WindowBatch], rows: Sequence[NDArray[np.int64]], size: int | None = None
) -> WindowBatch:
    """Return one batch in which each of these has its rows; other rows are zeros.

    `size`: the number of rows; by default that of all batches together.
    """
    size = sum(map(len, rows)) if size is None else size
    if isinstance(batches[0], Mapping):
        names: list[str] = [*batches[0]]
        return {
            name: joined_batches([batch[name] for batch in batches], rows, size) for name in names
        }
    joined = np.zeros((size, *batches[0].shape[1:]), batches[0].dtype)
    for batch, places in zip(batches, rows, strict=True):
        joined[places] = batch
    return joined


def windows_in(tokens: CorpusTokens, window: int) -> int:
    """Return the number of whole windows."""
    return max(0, len(tokens) - 1) // window


def _gather(tokens: CorpusTokens, windows: NDArray[np.int64], window: int) -> Windows:
    if isinstance(tokens, JoinedTokens):
        return tokens.windows(windows, window)
    index = windows[:, None] * window + np.arange(window + 1)
    return tokens[index].astype(np.int32)
