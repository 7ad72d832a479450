"""A function as text: pickled by value in one process, and loaded in the run's processes.

The text is the key `task.pickled` or `optimizer.pickled` of a configuration:
`py3.12:DIGEST:BASE64`. The Python version is
there because pickled functions hold bytecode. Loading runs code that the text brings along, so a
configuration with this key is trusted like a program. The pickle is made by Ray's cloudpickle in
`archipelago.travelling_task`; this module needs only Python's own `pickle`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import pickle
import sys
import zlib
from collections.abc import Callable
from typing import Any

from coordinator.errors import UserMistake

MOST_CHARACTERS = 65_536
"""The longest text; Ray sends arguments of actors of up to 100 KiB with the call itself."""
DIGITS = 16
"""Hexadecimal digits of the digest."""


def init_of_skeleton(self: Any) -> None:
    """Do nothing: it stands for the `__init__` of a class until the pickle sets the real one."""


def python_version() -> str:
    """Return the version of Python that bytecode depends on, such as "py3.12"."""
    return f"py{sys.version_info.major}.{sys.version_info.minor}"


def text_of(pickled: bytes) -> str:
    """Return the text for a pickled function."""
    packed = base64.b64encode(zlib.compress(pickled, 9)).decode("ascii")
    return f"{python_version()}:{_digest(packed)}:{packed}"


def digest_of(text: str) -> str:
    """Return the digest that the text states, for messages and comparisons."""
    return text.split(":", 2)[1] if text.count(":") == 2 else ""


def problem_of(text: str) -> str | None:
    """Return why the text is not a whole pickled function; None if it is. Nothing is unpickled."""
    if len(text) > MOST_CHARACTERS:
        return f"has {len(text)} characters, and at most {MOST_CHARACTERS} can be sent"
    python, _, rest = text.partition(":")
    stated, colon, packed = rest.partition(":")
    if not colon or not python.startswith("py"):
        return "is not as the Python API writes it: VERSION:DIGEST:BASE64"
    if stated != (found := _digest(packed)):
        return f"is damaged: its digest is {found}, and {stated} is stated; give the function again"
    return None


def load_pickled(text: str, target: str, table: str = "task") -> Callable[..., Any]:
    """Return the function that was pickled as `target`; this runs code of the text.

    `table`: the table of the configuration that it belongs to.

    Errors: `UserMistake` if the text is damaged, is of another Python, or needs a module or a name
    that is not here.
    """
    where = f"{table} {target} of the Python API"
    if (problem := problem_of(text)) is not None:
        raise UserMistake(f"{where}: {table}.pickled {problem}")
    python, _, packed = text.split(":", 2)
    if python != python_version():
        raise UserMistake(
            f"{where} was pickled by {python}, and this is {python_version()}: use the same Python "
            f'on all machines, or move it to a module and set {table}.target = "module:function"'
        )
    try:
        make = pickle.loads(zlib.decompress(base64.b64decode(packed, validate=True)))
    except ModuleNotFoundError as error:
        raise UserMistake(
            f"{where} needs the module {error.name!r}, which this process cannot import: install "
            "it on every node, or start in the folder that has it"
        ) from error
    except (binascii.Error, zlib.error) as error:
        raise UserMistake(f"{where}: {table}.pickled is damaged: {error}") from error
    except Exception as error:
        raise UserMistake(f"{where} cannot be unpickled: {error!r}") from error
    if not callable(make):
        raise UserMistake(f"{where} is a {type(make).__name__}, not a function")
    return make


def _digest(packed: str) -> str:
    return hashlib.sha256(packed.encode("ascii", "replace")).hexdigest()[:DIGITS]
