"""Calls of a user's function by a shard or a learner; messages begin with the user's line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from coordinator.errors import UserMistake
from islands.user_code import attribute_of, unknown_options
from islands.user_lines import place_of, raised_by


class UserFunction(NamedTuple):
    """A function of the user's, with the options that it is called with."""

    where: str
    """The beginning of a message: its file and line, and the key that names it."""
    call: Callable[..., Any]
    """The function with its options; its errors are `UserMistake`."""
    takes: frozenset[str] = frozenset()
    """The optional arguments that it has; `call` passes them by keyword."""


def user_function(
    key: str,
    target: str,
    arguments: int,
    options: Mapping[str, Any],
    wanted: str,
    optional: Collection[str] = (),
) -> UserFunction:
    """Import the function that `target`, "module:attribute", names, and fix its options.

    `key`: the place in the configuration. `arguments`: how many it is called with by position.
    `wanted`: a description of such a function, for a message. `optional`: names of arguments that
    are passed by keyword to a function which has parameters of these names.

    Errors: `UserMistake` if there is none, it is not callable, or it does not take the arguments.
    """
    setting = f'{key} = "{target}"'
    found = attribute_of(key, target)
    if not callable(found) or inspect.isclass(found):
        kind = f"the class {found.__name__}" if inspect.isclass(found) else type(found).__name__
        raise UserMistake(f"{setting} is {kind}, not {wanted}")
    where = f"{place_of(found)}{setting}"
    given = f" with options {dict(options)}" if options else ""
    takes = _named(found, optional)
    if (problem := _call_problem(found, arguments, options, takes)) is not None:
        raise UserMistake(f"{where}{given}: {problem}; it must be {wanted}")
    function = partial(found, **options) if options else found

    def call(*values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except Exception as error:
            raise UserMistake(raised_by(f"{setting}{given}", error, place_of(found))) from error

    return UserFunction(where, call, takes)


def _named(function: Any, names: Collection[str]) -> frozenset[str]:
    """Return which of these names a function has as parameters."""
    try:
        return frozenset(inspect.signature(function).parameters) & frozenset(names)
    except (TypeError, ValueError):  # some functions in C have none
        return frozenset()


def _call_problem(
    function: Any, arguments: int, options: Mapping[str, Any], takes: Collection[str]
) -> str | None:
    """Return why a function cannot be called in this way; None if it can."""
    if given := sorted(set(takes) & set(options)):
        return f"{given[0]} is passed by the run, and is no option"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have none
        return None
    parameters = [*signature.parameters.values()]
    if problem := unknown_options(parameters[arguments:], options):
        return problem
    try:
        signature.bind(*range(arguments), **options, **dict.fromkeys(takes))
    except TypeError as error:
        return str(error)
    return None
