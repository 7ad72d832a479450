"""Frozen arrays from a file whose content is known, such as the base of a LoRA."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

from safetensors import SafetensorError
from safetensors.numpy import load_file

from coordinator.errors import UserMistake
from islands.data.buckets import connection, in_bucket, path_of, plain_uri
from islands.nested_leaves import nested

PIECE_BYTES = 1 << 22


def frozen_file(path: str | Path, sha256: str) -> Callable[[], dict[str, Any]]:
    """Return a function for `Task.frozen` that loads a safetensors file, and checks it.

    The file must be at this path on every node, or in a bucket. The tree nests at the slashes of
    the names.

    Args:
        path: The file, or a URI: `s3://BUCKET/KEY`, `gs://BUCKET/KEY`. A file of a bucket is
            copied into the temporary folder of the machine while it is loaded.
        sha256: The SHA-256 of the file, in hexadecimal, as `sha256sum` prints it. With it, no
            island trains on another base than the others.

    Raises:
        UserMistake: When called: there is no such file, or it has another content.
    """
    given = str(path) if in_bucket(str(path)) else str(Path(path).expanduser())

    def load() -> dict[str, Any]:
        try:
            with _checked(given, sha256.lower()) as checked:
                return nested(load_file(checked))
        except SafetensorError as error:
            raise UserMistake(
                f"frozen arrays: {plain_uri(given)} is no safetensors file: {error}"
            ) from error
        except OSError as error:
            why = error.strerror or str(error)
            raise UserMistake(f"frozen arrays: {plain_uri(given)} cannot be read: {why}") from error

    return load


@contextmanager
def _checked(given: str, sha256: str) -> Generator[Path]:
    """Yield the path of the file, or of a copy of it that ends with the block.

    Errors: `UserMistake` if it has another digest; `OSError`.
    """
    if not in_bucket(given):
        with Path(given).open("rb") as file:
            _compare(given, sha256, _digest(file, None))
        yield Path(given)
        return
    with NamedTemporaryFile("wb", suffix=".safetensors") as copy:
        with connection(given).open_input_stream(path_of(given)) as file:
            _compare(given, sha256, _digest(file, copy))
        copy.flush()
        yield Path(copy.name)


def _compare(given: str, wanted: str, found: str) -> None:
    if found != wanted:
        raise UserMistake(
            f"frozen arrays: {plain_uri(given)} has the SHA-256 {found}, and the task wants "
            f"{wanted}: put the right file there, or change the task"
        )


def _digest(file: Any, copy: IO[bytes] | None) -> str:
    """Return the SHA-256 of a file that is open for reading, and copy it on the way."""
    digest = hashlib.sha256()
    while piece := file.read(PIECE_BYTES):
        digest.update(piece)
        if copy is not None:
            copy.write(piece)
    return digest.hexdigest()
