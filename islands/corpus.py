"""Real text as a stream of tokens, with a cursor that can be saved and restored.

A source is a set of files. Some of them are held out; the rest, joined, are cut into *windows* of
`window + 1` tokens that share one token with their neighbour, so that every token is predicted
once per epoch. Windows are shuffled by seed and epoch, and that endless order is handed out in
*leases* (docs/protocol.md): whoever knows source, seed and a lease's number finds the same windows.

No JAX in here: the configuration's door reads a corpus too, and needs no accelerator for it.
"""

from __future__ import annotations

import glob
import hashlib
import os
import sysconfig
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import ArchipelagoError, UserMistake
from coordinator.protocol import Lease

Tokens = NDArray[np.unsignedinteger[Any]]
"""Token ids, [length], in the smallest unsigned type that holds the vocabulary."""
Windows = NDArray[np.int32]
"""A batch, [batch, window + 1]: position i + 1 is to be predicted from the positions up to i."""

BYTES = 256
"""The vocabulary of text: a token is a byte."""
SEPARATOR = 0
"""The byte between two documents of text; text itself has none."""
STDLIB = "python-stdlib"
"""Source name: the interpreter's own standard library, some 14 MB on every machine."""
STDLIB_WITHOUT = frozenset({"site-packages", "dist-packages", "test", "__pycache__"})
"""Folders left out: what was installed, and `test`, which many distributions do not ship."""
PARQUET = frozenset({".parquet", ".pq"})
SNIFFED_BYTES = 8000
"""A file with a byte 0 in its first 8000 bytes is binary: git's own rule (`buffer_is_binary`)."""
PROBLEMS_SHOWN = 5
TRAIN, HELDOUT = 0, 1
"""Which order a permutation belongs to; part of its seed."""


class Starved(ArchipelagoError):
    """A batch was wanted of a stream whose leases are used up; nothing was consumed."""


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Where the tokens come from and how they are handed out: the table `[data]`.

    source: "python-stdlib", a text file, a folder (with all below it), a glob, or Parquet files.
    column, tokens: the Parquet column to read, and whether it holds lists of token ids.
    heldout_percent: share of the files never trained on. window: predicted tokens per window.
    lease_windows: windows in one lease.
    """

    source: str = STDLIB
    column: str | None = None
    tokens: bool = False
    heldout_percent: float = 5.0
    window: int = 128
    seed: int = 0
    lease_windows: int = 256


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """The tokens of a source, [length] each; `spec` says how they are cut and shuffled."""

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
            digest.update(tokens.tobytes())
        return digest.hexdigest()[:16]

    def at(self, positions: NDArray[np.int64], seed: int) -> Windows:
        """The windows at these positions of the endless sequence of shuffled epochs."""
        epochs, places = np.divmod(positions, self.windows)
        index = np.empty_like(positions)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            index[inside] = _order(seed, TRAIN, int(epoch), self.windows)[places[inside]]
        return _gather(self.train, index, self.spec.window)

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
        order = _order(self._corpus.spec.seed, HELDOUT, 0, self._windows)
        chosen = order[first : first + self._batch_size]
        return _gather(self._corpus.heldout, chosen, self._corpus.spec.window)


class Stream:
    """Training batches out of leases, one after another; one learner's reader.

    To restore one, make a new one and `add` the saved `cursor`, then the leases behind it.
    """

    def __init__(self, corpus: Corpus, batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        self._corpus, self._seed = corpus, seed
        self._length = corpus.spec.lease_windows
        self._leases: deque[Lease] = deque()

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
        """Consume the next `batch_size` windows, across leases where need be; or `Starved`."""
        if (left := self.remaining) < self.batch_size:
            raise Starved(f"{self.batch_size} windows wanted, {left} left: add a lease")
        positions: list[NDArray[np.int64]] = []
        missing = self.batch_size
        while missing:
            lease = self._leases[0]
            if lease.start == self._length:  # kept until now, for the cursor
                self._leases.popleft()
                continue
            taken = min(missing, self._length - lease.start)
            first = lease.number * self._length + lease.start
            positions.append(np.arange(first, first + taken, dtype=np.int64))
            self._leases[0] = replace(lease, start=lease.start + taken)
            missing -= taken
        return self._corpus.at(np.concatenate(positions), self._seed)


def _windows(tokens: Tokens, window: int) -> int:
    return max(0, len(tokens) - 1) // window


@lru_cache(maxsize=3)  # two epochs where one ends, and the held-out one
def _order(seed: int, kind: int, epoch: int, windows: int) -> NDArray[np.int64]:
    bits = np.random.PCG64(np.random.SeedSequence((seed, kind, epoch)))
    order = np.random.Generator(bits).permutation(windows).astype(np.int64)
    order.setflags(write=False)
    return order


def _gather(tokens: Tokens, windows: NDArray[np.int64], window: int) -> Windows:
    index = windows[:, None] * window + np.arange(window + 1)
    return tokens[index].astype(np.int32)


def read_corpus(data: DataSpec, vocabulary: int = BYTES) -> Corpus:
    """Read the source and split off what is held out.

    Files are held out whole, by a hash of their path below the source and the seed. A single file
    is held out by its tail: the last bytes of a text, the last rows of a Parquet file. Documents
    of text are joined with a byte 0; rows of token ids are joined as they are.

    Errors: `UserMistake` with all problems found, if the source is missing, unreadable or empty,
    if a column is not there or holds something else, if an id is outside the vocabulary, or if
    there are fewer windows than one lease (for training) or than one (held out).
    """
    problems = _impossible(data, vocabulary)
    root, files = Path(), list[Path]()
    try:
        root, files = _find(data)
    except UserMistake as error:
        problems.append(str(error))
    _refuse(problems)
    train: list[Tokens] = []
    heldout: list[Tokens] = []
    alone = len(files) == 1
    kept = 1 - data.heldout_percent / 100
    names = [path.relative_to(root).as_posix() for path in files]
    for path, outside in zip(files, _split(names, data), strict=True):
        try:
            if alone:
                train.append(_read(path, data, vocabulary, 0, kept))
                heldout.append(_read(path, data, vocabulary, kept, 1))
            else:
                (heldout if outside else train).append(_read(path, data, vocabulary, 0, 1))
        except (OSError, UserMistake) as error:
            problems.append(str(error))
    _refuse(problems)
    corpus = Corpus(data, _join(train, data, vocabulary), _join(heldout, data, vocabulary))
    _refuse(_too_small(corpus))
    return corpus


def find_source(data: DataSpec) -> list[Path]:
    """The source's files, none of them read.

    Errors: `UserMistake` if there are none.
    """
    return _find(data)[1]


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


def _find(data: DataSpec) -> tuple[Path, list[Path]]:
    """The source's root and its files, sorted; hidden files and folders are left out."""
    if data.source == STDLIB:
        root = Path(sysconfig.get_paths()["stdlib"])
        return root, sorted(_of_stdlib(root))
    path = Path(data.source).expanduser()
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        root, found = path, path.rglob("*")
    elif glob.has_magic(data.source):
        fixed = path.parts[: [glob.has_magic(part) for part in path.parts].index(True)]
        root, found = Path(*fixed), (Path(p) for p in glob.glob(str(path), recursive=True))
    else:
        raise UserMistake(
            f"data.source = {data.source!r}: there is no such file or folder (looked in "
            f"{Path.cwd()}): name a file, a folder, a glob, or {STDLIB!r}"
        )
    files = sorted(
        p
        for p in found
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(root).parts)
    )
    tables = [p for p in files if p.suffix in PARQUET]
    wants_tables = bool(tables) or data.column is not None
    files = tables if wants_tables else [p for p in files if not _is_binary(p)]
    if not files:
        wanted = "Parquet file (data.column is set)" if wants_tables else "text file"
        raise UserMistake(f"data.source = {data.source!r} is empty: no {wanted} is below it")
    return root, files


def _of_stdlib(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = {*folders} - STDLIB_WITHOUT
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _split(names: Sequence[str], data: DataSpec) -> list[bool]:
    """Which files are held out; of several files at least one, and never all."""
    drawn = [
        int.from_bytes(hashlib.blake2b(os.fsencode(f"{data.seed}:{name}"), digest_size=8).digest())
        for name in names
    ]
    bound = data.heldout_percent / 100 * 2**64
    bound = min(max(bound, min(drawn) + 1), max(drawn))
    return [number < bound for number in drawn]


def _is_parquet(path: Path, data: DataSpec) -> bool:
    return path.suffix in PARQUET or data.column is not None


def _is_binary(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(SNIFFED_BYTES)
    except OSError:
        return False  # to be read and then reported with all the others that cannot be


def _read(path: Path, data: DataSpec, vocabulary: int, start: float, stop: float) -> Tokens:
    """The share [start, stop) of a file's bytes or rows, as tokens."""
    if _is_parquet(path, data):
        return _read_parquet(path, data, vocabulary, start, stop)
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    return raw[round(start * len(raw)) : round(stop * len(raw))]


def _read_parquet(path: Path, data: DataSpec, vocabulary: int, start: float, stop: float) -> Tokens:
    # By name, since pyarrow has no types; and late: a third of a second that text need not pay.
    pa: Any = import_module("pyarrow")
    pc: Any = import_module("pyarrow.compute")
    ds: Any = import_module("pyarrow.dataset")
    try:
        table = ds.dataset(str(path), format="parquet")
        names: list[str] = table.schema.names
        if data.column is None or data.column not in names:
            asked = "data.column is not set" if data.column is None else f"no {data.column!r}"
            raise UserMistake(f"{path}: {asked}; its columns are {', '.join(names)}")
        column = table.to_table(columns=[data.column]).column(0).drop_null()
        column = column.slice(
            first := round(start * len(column)), round(stop * len(column)) - first
        )
        if not data.tokens:
            rows: list[bytes] = column.cast(pa.large_binary()).to_pylist()
            return np.frombuffer(bytes([SEPARATOR]).join(rows), np.uint8)
        ids: NDArray[np.integer[Any]] = pc.list_flatten(column).combine_chunks().to_numpy(False)
    except (pa.ArrowException, OSError) as error:
        kind = "lists of token ids" if data.tokens else "text (for ids set data.tokens = true)"
        what = f"column {data.column!r} cannot be read as {kind}"
        raise UserMistake(f"{path}: {what}: {error}") from error
    if ids.dtype.kind not in "iu":
        what = f"holds {ids.dtype} values or nulls in its lists, not token ids"
        raise UserMistake(f"{path}: column {data.column!r} {what}")
    if len(ids) and not 0 <= (low := ids.min()) <= (high := ids.max()) < vocabulary:
        what = f"token ids run from {low} to {high}, the vocabulary from 0 to {vocabulary - 1}"
        raise UserMistake(f"{path}: {what}: take the tokenizer that the task was made for")
    return ids.astype(_dtype(vocabulary))


def _join(documents: Sequence[Tokens], data: DataSpec, vocabulary: int) -> Tokens:
    dtype = _dtype(vocabulary)
    between = np.zeros(0 if data.tokens else 1, dtype)  # SEPARATOR
    parts = [part for document in documents if len(document) for part in (document, between)]
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)


def _dtype(vocabulary: int) -> np.dtype[np.unsignedinteger[Any]]:
    return np.min_scalar_type(vocabulary - 1)
