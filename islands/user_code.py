"""The user's own code behind a key of the configuration, "module:attribute": found and called."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from coordinator.errors import UserMistake

T = TypeVar("T")
OURS = str(Path(__file__).parent)
"""The folder of this package, whose lines are of no use to the author of the code."""


def attribute_of(key: str, target: str) -> Any:
    """Import what `target`, "module:attribute", names; `key`: where it is configured.

    Errors: `UserMistake` if there is no such module or attribute, or if the import raises.
    """
    name, _, attribute = target.partition(":")
    setting = f'{key} = "{target}"'
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserMistake(
            f"{setting}: no module {error.name!r}: install it or set PYTHONPATH"
        ) from error
    except Exception as error:
        raise UserMistake(f"{setting}: the import {raises(error)}") from error
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        near = get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserMistake(f"{setting}: module {name} has no {attribute}{hint}") from error


def result_of(
    key: str, target: str, function: Callable[..., Any], options: Mapping[str, Any]
) -> Any:
    """Call a user's function with the options of its table as keyword arguments.

    Errors: `UserMistake` if it does not take the options, needs others, or raises.
    """
    setting = f'{key} = "{target}" with options {dict(options)}'
    if (signature := _signature(function)) is not None:
        if unknown := unknown_options([*signature.parameters.values()], options):
            raise UserMistake(f"{setting}: {unknown}")
        try:
            signature.bind(**options)
        except TypeError as error:
            raise UserMistake(f"{setting}: {error}") from error
    return asked(f"{setting}:", lambda: function(**options))


def asked(setting: str, call: Callable[[], T], remedy: str = "") -> T:
    """Return the result of the user's code; `setting` names it in a message.

    Errors: `UserMistake` if it raises, with the line and the remedy.
    """
    try:
        return call()
    except Exception as error:
        raise UserMistake(f"{setting} {raises(error)}{remedy}") from error


def raises(error: Exception) -> str:
    """Return the message of an exception of the user's code, and the line that raised it."""
    lines = str(error).strip().splitlines() or [""]
    return f"raises {type(error).__name__}: {lines[0]}{line_of(error, OURS)}"


def line_of(error: Exception, *ignored: str) -> str:
    """Return the innermost line outside JAX; a user's own before a library's.

    `ignored`: beginnings of the names of files that are of no use to the user.
    """
    left_out = (*ignored, *_jax_folders())
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(left_out)
    ]
    user_frames = [frame for frame in frames if "site-packages" not in Path(frame.filename).parts]
    if not frames:
        return ""
    last = (user_frames or frames)[-1]
    return f" ({last.filename}:{last.lineno}, in {last.name})"


@cache
def _jax_folders() -> tuple[str, ...]:
    """Return the folder of JAX, which is not imported: a shard needs none."""
    spec = find_spec("jax")
    return () if spec is None or spec.origin is None else (str(Path(spec.origin).parent),)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return a function's signature; None if it has none, as some functions in C."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def unknown_options(parameters: Sequence[inspect.Parameter], options: Mapping[str, Any]) -> str:
    """Return which options are none of a function's parameters; empty if all are."""
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return ""
    known = [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY]
    unknown = [name for name in options if name not in known]
    if not unknown:
        return ""
    return "; ".join([*(_hint(name, known) for name in unknown), f"it has {', '.join(known)}"])


def _hint(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"{name} is no option of it" + (f", did you mean {near[0]}?" if near else "")
