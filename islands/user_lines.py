"""The file and line of the user's code, with which a message about it begins."""

from __future__ import annotations

import ast
import inspect
import sysconfig
import traceback
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(
    f"{ROOT / package}/" for package in ("coordinator", "islands", "cluster", "archipelago")
)
"""Folders whose lines are of no use to the author of a function."""
EXAMPLES = f"{ROOT / 'archipelago' / 'examples'}/"
"""The folder of shipped examples, whose lines count as the user's."""
FRAMEWORKS = ("jax", "optax", "flax", "equinox")
"""Packages whose lines are of no use either."""
WRAPPED = "user_callable"
"""The attribute of a wrapper of ours that holds the user's own function."""
TYPED = ("<stdin", "<ipython")
"""The beginnings of the names that typed code has in place of a file."""
DEEPEST = 32
"""The most wrappers around a function; more are not taken off."""


def place_of(function: Any) -> str:
    """Return "FILE:LINE: " of a function, a class or an object with `__call__`.

    Wrappers of ours, of `functools` and of JAX are taken off first. The place of a function of
    ours or of a framework is empty, and so is one that is not known.
    """
    found = _inside(function)
    if inspect.isclass(found):
        return _place_of_class(found)
    code = getattr(found, "__code__", None)
    if code is None and callable(found):  # an object with `__call__`
        code = getattr(type(found).__call__, "__code__", None)
    return "" if code is None else _place(code.co_filename, code.co_firstlineno)


def place_of_name(module: Any, name: str) -> str:
    """Return "FILE:LINE: " of the assignment of a module's variable; empty if there is none."""
    try:
        file, source = inspect.getsourcefile(module) or "", inspect.getsource(module)
    except (OSError, TypeError):  # a module without a source file
        return ""
    for each in ast.parse(source).body:
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return _place(file, each.lineno)
    return ""


def wrapping(ours: Any, function: Any) -> Any:
    """Return a function of ours that wraps the user's one, after noting that for `place_of`."""
    setattr(ours, WRAPPED, function)
    return ours


def raised_by(setting: str, error: BaseException, place: str = "") -> str:
    """Return the message of an exception in a user's function: the user's line, then the rest.

    `place`: the line of the function, for an exception outside it.
    """
    first, inside = place, ""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        first = f"{error.filename}:{error.lineno}: "
    elif (frame := _frame_of(error, place)) is not None:
        first, inside = f"{frame.filename}:{frame.lineno}: ", f" (in {frame.name})"
    words = (str(error).strip().splitlines() or [""])[0]
    return f"{first}{setting} raises {type(error).__name__}: {words}{inside}"


def line_in(error: BaseException) -> str:
    """Return "FILE:LINE: " of the innermost line of the user's; empty if there is none."""
    own = [frame for frame in _frames(error) if not _is_library(frame.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}: " if own else ""


def is_ours(file: str) -> bool:
    """Return whether the lines of a file are ours or of a framework, and not the user's."""
    return file.startswith((*OURS, *_frameworks())) and not file.startswith(EXAMPLES)


def _frame_of(error: BaseException, place: str) -> traceback.FrameSummary | None:
    """Return the innermost line of the user's; that of a library only if no place is known."""
    frames = _frames(error)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    if not own and place and not _is_library(place):
        return None
    return (own or frames or [None])[-1]


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [
        each
        for each in frames
        if not is_ours(each.filename) and not each.filename.startswith("<frozen")
    ]


def _is_library(file: str) -> bool:
    """Return whether a file is of a package that was installed, or of Python itself."""
    if file.startswith("<"):
        return not file.startswith(TYPED)
    return "site-packages" in Path(file).parts or file.startswith(sysconfig.get_path("stdlib"))


def _inside(function: Any) -> Any:
    """Return the user's function inside all wrappers."""
    found = function
    for _ in range(DEEPEST):
        if (own := getattr(found, WRAPPED, None)) is not None:
            found = own
        elif isinstance(found, partial):
            found = found.func
        elif callable(inner := getattr(found, "__wrapped__", None)):
            found = inner
        else:
            break
    return found


def _place_of_class(found: type) -> str:
    try:
        return _place(inspect.getsourcefile(found) or "", inspect.getsourcelines(found)[1])
    except (OSError, TypeError):  # a class of a notebook has no file, and one of C no source
        code = getattr(found.__init__, "__code__", None)
        return "" if code is None else _place(code.co_filename, code.co_firstlineno)


def _place(file: str, line: int) -> str:
    return "" if not file or is_ours(file) else f"{file}:{line}: "


@cache
def _frameworks() -> tuple[str, ...]:
    """Return the folders of the frameworks, which are not imported: a shard needs none."""
    specs = [find_spec(name) for name in FRAMEWORKS]
    return tuple(
        f"{Path(spec.origin).parent}/" for spec in specs if spec is not None and spec.origin
    )
