"""The conversion of events and states to plain data and back; replay(tape) == state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from coordinator.advance import advance
from coordinator.errors import ArchipelagoError
from coordinator.membership import Members
from coordinator.protocol import Event, Report
from coordinator.roster import Roster
from coordinator.state import Rule, State

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
"""A value that JSON can hold."""

T = TypeVar("T")

KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


class UnknownRecord(ArchipelagoError):
    """A record of the tape of a kind that this version of the code cannot read."""


def record(event: Event) -> tuple[str, Plain]:
    """Return the event's kind and its fields, as plain data.

    Most of a tape are reports, and few of them have moments: the others are written without.
    """
    fields = _plain(event)
    if isinstance(event, Report) and event.moments is None and isinstance(fields, dict):
        del fields["moments"]
    return type(event).__name__, fields


def recall(kind: str, fields: Plain) -> Event:
    """Return the event that was recorded.

    Errors: `UnknownRecord` for an unknown kind, or fields of another version.
    """
    if kind not in KINDS:
        raise UnknownRecord(f"a record of kind {kind!r} is not known")
    return from_plain(KINDS[kind], fields)


def to_plain(value: object) -> Plain:
    """Return a frozen dataclass of the vocabulary, such as a layout, as plain data."""
    return _plain(value)


def from_plain(kind: type[T], fields: Plain) -> T:
    """Return the value that `to_plain` was given.

    Errors: `UnknownRecord` if the data does not fit the kind.
    """
    try:
        return _build(kind, fields)
    except (KeyError, TypeError, ValueError) as error:
        raise UnknownRecord(f"a {kind.__name__} cannot be read: {error!r}") from error


def freeze(state: State) -> Plain:
    """Return a state as plain data, for a snapshot."""
    return _plain(state)


def thaw(fields: Plain) -> State:
    """Return the state that was frozen.

    Errors: `UnknownRecord` if another version wrote it.
    """
    return from_plain(State, fields)


def replay(rule: Rule, state: State, tape: Iterable[tuple[float, Event]]) -> State:
    """Return the state after these events at these times (seconds)."""
    for now_s, event in tape:
        state, _ = advance(rule, state, event, now_s)
    return state


def _plain(value: object) -> Plain:
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return [[_plain(key), _plain(part)] for key, part in pairs]
    if isinstance(value, frozenset):
        return [_plain(part) for part in sorted(cast("frozenset[Any]", value))]
    if isinstance(value, tuple):
        return [_plain(part) for part in cast("tuple[object, ...]", value)]
    return {name: _plain(getattr(value, name)) for name in _fields(type(value))}


def _build(kind: Any, value: Any) -> Any:
    if kind is Roster:
        return Roster(_build(Members, value))
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (inner,) = (part for part in arguments if part is not type(None))
        return None if value is None else _build(inner, value)
    if origin is Mapping:
        return {_build(arguments[0], key): _build(arguments[1], part) for key, part in value}
    if origin is frozenset:
        return frozenset(_build(arguments[0], part) for part in value)
    if origin is tuple and arguments[1] is not ...:
        return tuple(_build(kind, part) for kind, part in zip(arguments, value, strict=True))
    if origin is tuple:
        return tuple(_build(arguments[0], part) for part in value)
    if (supertype := getattr(kind, "__supertype__", None)) is not None:
        return _build(supertype, value)
    if dataclasses.is_dataclass(kind):
        hints = _fields(kind)
        return kind(**{name: _build(hints[name], part) for name, part in value.items()})  # type: ignore[operator]
    if tuple in kind.__mro__:
        return kind(*map(_build, _fields(kind).values(), value))
    return kind(value)


@cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
