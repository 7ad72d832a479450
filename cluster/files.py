"""Whole files: written aside, flushed, renamed, so that nothing is half there."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Replace a file as a whole; it survives a crash of the machine once this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, value: object) -> None:
    write(path, (json.dumps(value, indent=2) + "\n").encode())
