"""Fast replacement of fields in frozen dataclasses, the most frequent operation of the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def replace(value: T, **changes: Any) -> T:
    """Return a copy of a frozen dataclass with slots, with these fields changed.

    It works like `dataclasses.replace` and is four times as fast. Neither `__init__` nor
    `__post_init__` is called.

    Errors: `TypeError` if the class has no such field.
    """
    copied, writers = _of(type(value))
    new = copied(value)
    for name, changed in changes.items():
        if name not in writers:
            raise TypeError(f"a {type(value).__name__} has no {name}")
        writers[name](new, changed)
    return new


@cache
def _of(kind: type) -> tuple[Callable[[Any], Any], Mapping[str, Callable[[Any, Any], None]]]:
    """Return a function that copies a value of this class, and a writer for each field.

    The function is generated field by field, as `dataclasses` does for `__init__`. Fields of base
    classes are included.
    """
    names = [name for above in reversed(kind.__mro__) for name in getattr(above, "__slots__", ())]
    writers = {name: getattr(kind, name).__set__ for name in names}
    lines = [f"write_{name}(new, value.{name})" for name in names]
    body = "\n    ".join(["new = blank(kind)", *lines, "return new"])
    scope: dict[str, Any] = {f"write_{name}": write for name, write in writers.items()}
    scope |= {"blank": object.__new__, "kind": kind}
    exec(f"def copied(value):\n    {body}", scope)
    return scope["copied"], writers
