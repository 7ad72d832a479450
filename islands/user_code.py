"""The user's own code behind a key of the configuration, "module:attribute": found and called."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from typing import Any, TypeVar

from coordinator.errors import ArchipelagoError, UserMistake
from islands.user_lines import line_in, place_of, raised_by

T = TypeVar("T")


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
            f"{line_in(error)}{setting}: no module {error.name!r}: install it or set PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:  # a script without a guard reads its arguments
        raise UserMistake(raised_by(f"{setting}: the import", error)) from error
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
    setting, place = f'{key} = "{target}" with options {dict(options)}', place_of(function)
    if (signature := _signature(function)) is not None:
        if unknown := unknown_options([*signature.parameters.values()], options):
            raise UserMistake(f"{place}{setting}: {unknown}")
        try:
            signature.bind(**options)
        except TypeError as error:
            raise UserMistake(f"{place}{setting}: {error}") from error
    return asked(f"{setting}:", lambda: function(**options), place=place)


def asked(setting: str, call: Callable[[], T], remedy: str = "", place: str = "") -> T:
    """Return the result of the user's code; `setting` names it in a message.

    `place`: the line of the user's function, for an exception outside it.

    Errors: `UserMistake` if it raises, with the user's line first and the remedy last; an error of
    ours is raised unchanged, because it has its place and remedy.
    """
    try:
        return call()
    except ArchipelagoError:
        raise
    except Exception as error:
        raise UserMistake(f"{raised_by(setting, error, place)}{remedy}") from error


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
