"""The tokens of many files as one sequence that is read where it is.

Only the files' sizes are needed to begin, so a corpus of any size opens at once. Files of this
machine are memory-mapped, some at a time. Of files in a bucket, each window is one request, and all
windows of a batch are requested at the same time.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands import token_files
from islands.data.buckets import SourceFile

OPEN_FILES = 256
"""Files that are open at the same time; a process may have about a thousand."""
READERS = 16
"""Requests to a bucket at the same time."""


@dataclass(frozen=True, slots=True)
class TokenPart:
    """Consecutive tokens of a file."""

    file: SourceFile
    start: int
    """The place in the file of the first token, in tokens."""
    count: int
    """Tokens in the file."""
    ending: int | None = None
    """One more token behind those of the file, that is not in it."""
    digest: str = ""
    """The digest of the file, if it is known."""

    @property
    def tokens(self) -> int:
        """Tokens of the part, with the one behind the file."""
        return self.count + (self.ending is not None)


def divided(
    parts: Sequence[TokenPart], heldout_percent: float, ending: int | None = None
) -> tuple[list[TokenPart], list[TokenPart]]:
    """Return the beginning of each part for training, and its end, which is held out.

    The cut may be within a document, whose two halves then meet other documents. `ending` is put
    between them; None: they are joined as they are.
    """
    train, heldout = list[TokenPart](), list[TokenPart]()
    for part in parts:
        kept = round((1 - heldout_percent / 100) * part.count)
        rest, count = part.start + kept, part.count - kept
        train.append(replace(part, count=kept, ending=ending))
        heldout.append(replace(part, start=rest, count=count, ending=ending))
    return train, heldout


class JoinedTokens:
    """The tokens of many files as one sequence."""

    def __init__(self, parts: Sequence[TokenPart], dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._parts = [part for part in parts if part.tokens]
        counts = np.array([part.tokens for part in self._parts], np.int64)
        self._ends = np.cumsum(counts)
        self._lock = threading.Lock()
        self._maps: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._streams: OrderedDict[int, Any] = OrderedDict()
        self._readers: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def fingerprint(self) -> str:
        """A hash of the files' digests, or else of their names and sizes, and of their parts."""
        digest = hashlib.sha256(self.dtype.str.encode())
        for part in self._parts:
            content = part.digest or str(part.file)
            digest.update(f"{content} {part.start} {part.count} {part.ending}\n".encode())
        return digest.hexdigest()

    def windows(self, numbers: NDArray[np.int64], window: int) -> NDArray[np.int32]:
        """Return windows of `window + 1` tokens, [windows, window + 1].

        Window i begins at the token i x `window`.

        Errors: `UserMistake` if a file cannot be read, or is shorter than it was at the start.
        """
        found = np.empty((len(numbers), window + 1), np.int32)
        far = list[tuple[int, int, int, NDArray[np.int32]]]()
        for row, begin in enumerate((numbers * window).tolist()):
            for number, start, end, place in self._ranges(begin, begin + window + 1):
                part, into = self._parts[number], found[row, place : place + end - start]
                stop = min(end, part.count)
                if stop < end and part.ending is not None:  # the token behind the file
                    into[-1], into = part.ending, into[:-1]
                if start < stop and isinstance(part.file, Path):
                    into[:] = self._mapped(number)[start:stop]
                elif start < stop:
                    far.append((number, start, stop, into))
        self._fetch(far)
        return found

    def _ranges(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield part, first token in it, the token behind, and the place of the first in all."""
        number, done = int(np.searchsorted(self._ends, begin, "right")), begin
        while done < end:
            part = self._parts[number]
            first = int(self._ends[number]) - part.tokens
            stop = min(end, int(self._ends[number]))
            yield number, done - first, stop - first, done - begin
            number, done = number + 1, stop

    def _mapped(self, number: int) -> NDArray[Any]:
        part = self._parts[number]
        with self._lock:
            if (known := self._maps.get(number)) is not None:
                self._maps.move_to_end(number)
                return known
            if len(self._maps) >= OPEN_FILES:
                self._maps.popitem(last=False)
            assert isinstance(part.file, Path)
            try:
                found = token_files.mapped(
                    part.file, self.dtype, part.start, part.start + part.count
                )
            except OSError as error:
                raise _changed(part, str(error.strerror)) from error
            if len(found) < part.count:
                raise _changed(part, f"it has {len(found) + part.start:,} tokens")
            self._maps[number] = found
            return found

    def _fetch(self, ranges: Sequence[tuple[int, int, int, NDArray[np.int32]]]) -> None:
        """Read ranges of files in a bucket, at the same time."""
        if not ranges:
            return
        if self._readers is None:
            self._readers = ThreadPoolExecutor(READERS, "corpus")
        for _ in self._readers.map(lambda each: self._fetched(*each), ranges):
            pass

    def _fetched(self, number: int, start: int, stop: int, into: NDArray[np.int32]) -> None:
        part, width = self._parts[number], self.dtype.itemsize
        try:
            stream = self._stream(number)
            read = stream.read_at((stop - start) * width, (part.start + start) * width)
        except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
            raise _changed(part, str(error)) from error
        if len(read) != (stop - start) * width:
            raise _changed(part, "it ends too early")
        into[:] = np.frombuffer(read, self.dtype)

    def _stream(self, number: int) -> Any:
        with self._lock:
            if (known := self._streams.get(number)) is not None:
                self._streams.move_to_end(number)
                return known
        opened = self._parts[number].file.open("rb")
        with self._lock:
            if len(self._streams) >= OPEN_FILES:
                self._streams.popitem(last=False)  # closed when no thread reads it any more
            return self._streams.setdefault(number, opened)


def _changed(part: TokenPart, problem: str) -> UserMistake:
    return UserMistake(
        f"{part.file} cannot be read as it could at the start of the run: {problem}; the files of "
        "a corpus must stay as they are during a run"
    )
