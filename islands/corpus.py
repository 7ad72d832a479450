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
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import ArchipelagoError, UserMistake
from coordinator.protocol import Lease
from islands import token_files
from islands.permutation import permuted
from islands.sources import (
    BYTES,
    PIECE_BYTES,
    DataSpec,
    Pieces,
    Tokens,
    dtype_of,
    held_out,
    is_parquet,
    root_and_files,
    tokens_of,
)

Windows = NDArray[np.int32]
"""A batch, [batch, window + 1]: position i + 1 is to be predicted from the positions up to i."""
PROBLEMS_SHOWN = 5
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
        return _windows(self.train, self.spec.window)

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
        self._windows = _windows(corpus.heldout, corpus.spec.window)

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


def _windows(tokens: Tokens, window: int) -> int:
    return max(0, len(tokens) - 1) // window


def _gather(tokens: Tokens, windows: NDArray[np.int64], window: int) -> Windows:
    index = windows[:, None] * window + np.arange(window + 1)
    return tokens[index].astype(np.int32)


def read_corpus(data: DataSpec, vocabulary: int = BYTES) -> Corpus:
    """Map the source into memory and split off what is held out.

    Files are held out whole, by a hash of their path below the source and the seed. A single file
    is held out by its tail: the last bytes of a text, the last rows of a Parquet file. Documents
    of text end with a byte 0, but for a single text; rows of token ids are joined as they are.

    Errors: `UserMistake` with all problems found, if the source is missing, unreadable or empty,
    if a column is not there or holds something else, if an id is outside the vocabulary, if
    there are fewer windows than one lease (for training) or than one (held out), or if there is no
    room for the tokens.
    """
    problems = _impossible(data, vocabulary)
    root, files = Path(), list[Path]()
    try:
        root, files = root_and_files(data)
    except UserMistake as error:
        problems.append(str(error))
    _refuse(problems)
    try:
        if len(files) == 1 and not is_parquet(files[0], data):
            train, heldout = _one_text(files[0], data)
        else:
            train, heldout = _tokens(root, files, data, vocabulary)
    except OSError as error:
        raise UserMistake(f"data.source = {data.source!r}: {error}") from error
    corpus = Corpus(data, train, heldout)
    _refuse(_too_small(corpus))
    return corpus


def _one_text(path: Path, data: DataSpec) -> tuple[Tokens, Tokens]:
    """Where it is, and as it is."""
    whole = token_files.mapped(path, np.dtype(np.uint8))
    cut = round((1 - data.heldout_percent / 100) * len(whole))
    return whole[:cut], whole[cut:]


def _tokens(
    root: Path, files: Sequence[Path], data: DataSpec, vocabulary: int
) -> tuple[Tokens, Tokens]:
    """Several files, or rows: written down once, as they lie in memory.

    Errors: `UserMistake` with what is wrong with files; `OSError` if there is no room.
    """
    names = [path.relative_to(root).as_posix() for path in files]
    dtype, alone = dtype_of(vocabulary), len(files) == 1
    kept = 1 - data.heldout_percent / 100
    sides = [False] if alone else held_out(names, data)

    def write(to: token_files.Writing) -> None:
        problems: list[str] = []
        for path, outside in zip(files, sides, strict=True):
            shares = [(to.heldout if outside else to.train, 0.0, 1.0)]
            if alone:
                shares = [(to.train, 0.0, kept), (to.heldout, kept, 1.0)]
            for file, start, stop in shares:
                pieces = tokens_of(path, data, vocabulary, start, stop)
                while (piece := _read(pieces, problems)) is not None:
                    file.write(piece.astype(dtype).tobytes())
        _refuse(problems)

    key = token_files.key_of(files, replace(data, window=0, lease_windows=0), vocabulary, *names)
    return token_files.kept(key, dtype, write)


def _read(pieces: Pieces, problems: list[str]) -> Tokens | None:
    """The next piece; None if there is none, or none that can be read. What is wrong with the
    source is told apart from what is wrong with where it is written to."""
    try:
        return next(pieces, None)
    except (OSError, UserMistake) as error:
        problems.append(str(error))
        return None


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        more = len(problems) - PROBLEMS_SHOWN
        shown = [*problems[:PROBLEMS_SHOWN], *([f"... and {more} more"] if more > 0 else [])]
        raise UserMistake("\n".join(shown))


def _impossible(data: DataSpec, vocabulary: int) -> list[str]:
    rules = [
        (data.window >= 1, f"data.window = {data.window}: must be at least 1"),
        (data.lease_windows >= 1, f"data.lease_windows = {data.lease_windows}: at least 1"),
        (data.seed >= 0, f"data.seed = {data.seed}: must not be negative"),
        (
            0 < data.heldout_percent < 100,
            f"data.heldout_percent = {data.heldout_percent}: must lie between 0 and 100",
        ),
        (
            not data.tokens or data.column is not None,
            "data.tokens needs data.column: the Parquet column that holds the token ids",
        ),
        (
            data.tokens or vocabulary >= BYTES,
            f"text is read as {BYTES} bytes, the task has a vocabulary of {vocabulary}: "
            "give token ids (data.tokens = true) or take a task for bytes",
        ),
    ]
    return [problem for kept, problem in rules if not kept]


def _too_small(corpus: Corpus) -> list[str]:
    window, needed = corpus.spec.window, corpus.spec.lease_windows
    found = corpus.windows, _windows(corpus.heldout, window)
    return [
        f"data.source = {corpus.spec.source!r} is too small: {count} {use} windows of {window} "
        f"tokens, {least} needed: give more text, or lower {what}"
        for count, least, use, what in (
            (found[0], needed, "training", "data.window or data.lease_windows"),
            (found[1], 1, "held-out", "data.window, or raise data.heldout_percent"),
        )
        if count < least
    ]
