"""The tokens of a source in files of their own, memory-mapped: read as they are needed.

    ~/.cache/archipelago/corpus/KEY.train, KEY.heldout    token ids, as they lie in memory

A source of several files, or of rows, is written there once for each machine, file by file and row
group by row group; all processes of the machine map the same pages. Files that were not used for a
month are deleted when new ones are written. A single text is mapped where it is.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np

from islands.data.buckets import FileId
from islands.sources import Tokens

log = logging.getLogger("archipelago.data")
FOLDER = "ARCHIPELAGO_CACHE"
"""The environment variable that names another folder than `~/.cache/archipelago`."""
UNUSED_S = 30 * 86_400.0
"""Seconds after which a file of tokens that was not opened is deleted."""
USES = ("train", "heldout")


def folder() -> Path:
    """Return the folder for token files on this machine."""
    return Path(os.environ.get(FOLDER) or Path.home() / ".cache" / "archipelago") / "corpus"


@dataclass(frozen=True, slots=True)
class Writing:
    """The files that the tokens of both uses are written to; both are new."""

    train: BinaryIO
    heldout: BinaryIO


def mapped(path: Path, dtype: np.dtype[Any], start: int = 0, stop: int | None = None) -> Tokens:
    """Return the tokens of a file from `start` to `stop`, in memory only where they are read.

    Windows are read in a random order. The read-ahead of the system, up to megabytes around each,
    would be useless, so it is turned off.
    """
    if (size := path.stat().st_size) == 0:
        return np.zeros(0, dtype)
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    memory.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(memory, dtype)[start:stop]


def key_of(files: Sequence[FileId], *facts: object) -> str:
    """Return a digest of the input of a token file; an equal digest means equal tokens.

    It covers the names, sizes and times of the files, and the facts.
    """
    digest = hashlib.sha256(repr(facts).encode())
    for name, size, modified_ns in files:
        digest.update(f"{name}\0{size}\0{modified_ns}\0".encode())
    return digest.hexdigest()[:24]


def kept(key: str, dtype: np.dtype[Any], write: Callable[[Writing], None]) -> tuple[Tokens, Tokens]:
    """Do what `in_folder` does, in temporary files if the machine's folder cannot be written to.

    Only this process sees the temporary files.
    """
    try:
        return in_folder(folder(), key, dtype, write)
    except OSError as error:
        log.warning("the tokens are not kept for the next time: %s", error)
    with TemporaryDirectory(prefix="archipelago-") as temporary:  # the mapping outlives the files
        return in_folder(Path(temporary), key, dtype, write)


def in_folder(
    there: Path, key: str, dtype: np.dtype[Any], write: Callable[[Writing], None]
) -> tuple[Tokens, Tokens]:
    """Return training and held-out tokens from the files of this key.

    If this machine has none, one process writes them first while the others wait.

    Errors: `OSError` if there is no room; what `write` raises, and then nothing is kept.
    """
    there.mkdir(parents=True, exist_ok=True)
    train, heldout = (there / f"{key}.{use}" for use in USES)
    with _locked(there / f"{key}.lock"):
        if not (train.exists() and heldout.exists()):
            _let_go(there)
            _write(train, heldout, write)
        for path in (train, heldout):
            os.utime(path)
        return mapped(train, dtype), mapped(heldout, dtype)


def _write(train: Path, heldout: Path, write: Callable[[Writing], None]) -> None:
    asides = [path.with_name(f".{path.name}.{os.getpid()}") for path in (train, heldout)]
    try:
        with asides[0].open("wb") as first, asides[1].open("wb") as second:
            write(Writing(first, second))
        for aside, path in zip(asides, (train, heldout), strict=True):
            aside.replace(path)
    finally:
        for aside in asides:
            aside.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _let_go(there: Path) -> None:
    """Delete files that were not used for long, and the remains of killed processes.

    Other processes write files of other keys meanwhile, so a file may have gone since it was
    listed. A file that cannot be deleted stays, which is only logged.
    """
    before_s = time.time() - UNUSED_S
    for path in there.iterdir():
        try:
            if path.suffix != ".lock" and path.stat().st_mtime < before_s:
                path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s is not used any more, and stays: %s", path, error)
