"""New values from old ones: what the rules do most."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def replace(value: T, **changes: Any) -> T:
    """As `dataclasses.replace`, for frozen dataclasses with slots; three times as fast.

    Neither `__init__` nor `__post_init__` is called.
    """
    new = object.__new__(type(value))
    for name, read, write in _slots(type(value)):
        write(new, changes.pop(name) if name in changes else read(value))
    if changes:
        raise TypeError(f"a {type(value).__name__} has no {', '.join(changes)}")
    return new


@cache
def _slots(kind: type) -> tuple[tuple[str, Any, Any], ...]:
    """Name, reader and writer of each field, those of the classes above included."""
    names = [name for above in reversed(kind.__mro__) for name in getattr(above, "__slots__", ())]
    return tuple((name, getattr(kind, name).__get__, getattr(kind, name).__set__) for name in names)
