"""Files that are written aside, flushed to the disk, and renamed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

NEW = ".new"
"""The end of the name of a file that is being written."""


def replaced(path: Path, content: bytes) -> None:
    """Replace a file as a whole, durably."""
    aside = path.with_name(f"{path.name}{NEW}")
    with aside.open("wb") as stream:
        stream.write(content)
        sealed(stream)
    aside.replace(path)
    flushed_folder(path.parent)


def sealed(stream: BinaryIO) -> None:
    """Flush a file to the disk, and close it."""
    stream.flush()
    os.fsync(stream.fileno())
    stream.close()


def flushed_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
