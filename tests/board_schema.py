"""Check of a board's JSON against Grafana's published schema.

Grafana publishes its schema as code: the models of `grafana-foundation-sdk`. They load any JSON and
check nothing. So this module loads a board through them and finds what a check would find:

- A field that no model has is gone when the models are written again.
- A value of another type differs from the annotation of its field.
- A field that the schema requires is there when the models are written, and not before.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

UNREADABLE = (TypeError, AttributeError, KeyError, ValueError)
"""Errors of the models where they expect a table or a list and get another value."""
UNIONS = (typing.Union, types.UnionType)
OF_THE_PLUGIN = {"step", "titleFormat", "textFormat"}
"""Fields of annotations that the plugin of Prometheus reads.

Grafana's schema leaves annotations open for such fields, and the models have the common ones only.
"""


def problems(board: Mapping[str, Any]) -> list[str]:
    """Return everything in a board that is not in the schema, each with its path."""
    plugins.register_default_plugins()
    try:
        model = Dashboard.from_json(json.loads(json.dumps(board)))
    except UNREADABLE as error:
        return [f"the models cannot load it: {type(error).__name__}: {error}"]
    again = json.loads(json.dumps(model, cls=JSONEncoder))
    return [*_lost(board, again, ""), *_missing(board, again, ""), *_wrong(model, Dashboard, "")]


def _lost(before: Any, after: Any, path: str) -> Iterator[str]:
    """Yield the fields that the models do not have, and values that they change."""
    match before, after:
        case dict(), dict():
            for key, value in before.items():
                if key in after:
                    yield from _lost(value, after[key], f"{path}.{key}")
                elif key in OF_THE_PLUGIN and path.startswith(".annotations.list["):
                    if not isinstance(value, str):
                        yield f"{path}.{key}: {value!r} is not str"
                elif value is not None:
                    yield f"{path}.{key}: the schema has no such field"
        case list(), list() if len(before) == len(after):
            for number, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from _lost(one, other, f"{path}[{number}]")
        case _:
            if before != after or type(before) is not type(after):
                yield f"{path}: {before!r} becomes {after!r}"


def _missing(before: Any, after: Any, path: str) -> Iterator[str]:
    """Yield the fields that the schema requires and fills with nothing useful."""
    match before, after:
        case dict(), dict():
            for key, value in after.items():
                if key in before:
                    yield from _missing(before[key], value, f"{path}.{key}")
                elif value == "":
                    yield f"{path}.{key}: the schema requires it"
        case list(), list():
            for number, (one, other) in enumerate(zip(before, after, strict=False)):
                yield from _missing(one, other, f"{path}[{number}]")
        case _:
            pass


def _wrong(value: Any, hint: Any, path: str) -> Iterator[str]:
    """Yield the values whose type is not that of their field."""
    if typing.get_origin(hint) in UNIONS:
        options = [each for each in typing.get_args(hint) if _fits(value, each)]
        found = [[*_wrong(value, each, path)] for each in options]
        if not options:
            yield f"{path}: {value!r} is not {' or '.join(map(_name, typing.get_args(hint)))}"
        else:
            yield from min(found, key=len)
    elif not _fits(value, hint):
        yield f"{path}: {value!r} is not {_name(hint)}"
    else:
        for part, part_hint, name in _parts(value, hint):
            yield from _wrong(part, part_hint, f"{path}{name}")


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has this type, whatever its parts are."""
    origin = typing.get_origin(hint)
    if hint in (Any, object):
        return True
    if origin in UNIONS:
        return any(_fits(value, each) for each in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if issubclass(origin or hint, enum.Enum):
        return value in [each.value for each in hint]
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if hint is float else origin or hint)


def _parts(value: Any, hint: Any) -> Iterator[tuple[Any, Any, str]]:
    """Yield the parts of a value that fits, with the type and the name of each."""
    match value:
        case list() if typing.get_origin(hint) is list:
            yield from ((each, typing.get_args(hint)[0], f"[{i}]") for i, each in enumerate(value))
        case dict() if typing.get_origin(hint) is dict:
            yield from ((each, typing.get_args(hint)[1], f".{i}") for i, each in value.items())
        case _ if _is_model(value):
            for name, each in _hints(type(value)).items():
                yield getattr(value, name), each, f".{name}"
        case _:
            pass


def _is_model(value: object) -> bool:
    return hasattr(value, "to_json") and bool(_hints(type(value)))


@cache
def _hints(model: type) -> dict[str, Any]:
    return typing.get_type_hints(model)


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))
