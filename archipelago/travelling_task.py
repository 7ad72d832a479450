"""A task of a notebook or a script as settings of a run, which travel with its configuration."""

from __future__ import annotations

import importlib
import inspect
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.config.load import tables_of
from coordinator.errors import UserMistake
from islands.pickled_task import MOST_CHARACTERS, digest_of, text_of

if TYPE_CHECKING:
    from islands.task import Task

MakeTask = Callable[..., "Task"]
"""A function `(data: DataSpec, **options) -> Task`."""
_NAMED = 5
"""The most variables that a message names."""


def settings_of(make: MakeTask) -> dict[str, str]:
    """Return the keys of `[task]` that name this function, or carry it.

    A function of a module that can be imported is named as "module:function". Any other function
    is pickled by value, together with the variables, functions and classes of its notebook or
    script that it uses.

    Errors: `UserMistake` if it is no function, or cannot be pickled; with the variable and the
    reason.
    """
    if not callable(make) or isinstance(make, type):
        raise UserMistake(
            f"task= is {_kind(make)}: give a function (data: DataSpec, **options) -> Task, which "
            "each process of the run calls to make its own task"
        )
    name = _name_of(make)
    if (target := _importable(make)) is not None:
        return {"target": target}
    return {"target": name, "pickled": _pickled(make, name)}


def with_task(tables: Mapping[str, Any], make: MakeTask) -> dict[str, Any]:
    """Return the tables of a configuration with this task in place of its preset or target."""
    options = tables.get("task", {}).get("options", {})
    return {**tables, "task": {"options": options, **settings_of(make)}}


def check_resumed(pickled: str | None, config_path: Path) -> None:
    """Check that a run would be resumed with the pickled task that it began with.

    Errors: `UserMistake` if it began with another one. Pickles of the same source differ from one
    notebook to the next, so the run's own one is the only right one.
    """
    try:
        began_with = tables_of(config_path).get("task", {}).get("pickled")
    except UserMistake:  # the run's own checks report this file
        return
    if pickled is not None and pickled != began_with:
        began = "none" if began_with is None else digest_of(str(began_with))
        raise UserMistake(
            f"resume: the pickled task {digest_of(pickled)} is not the one that the run began "
            f"with, {began}: leave task= out, and give {config_path}, which has the run's own task"
        )


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _name_of(make: MakeTask) -> str:
    """Return "module:function" for messages, with characters that the key `target` allows."""
    module = str(getattr(make, "__module__", None) or "__main__")
    name = str(getattr(make, "__qualname__", type(make).__qualname__))
    return f"{module}:{re.sub(r'[^0-9A-Za-z_.]+', '_', name)}"


def _importable(make: MakeTask) -> str | None:
    """Return "module:function" if other processes can import it so; None if they cannot."""
    module, name = getattr(make, "__module__", None), getattr(make, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:  # a module that was made at run time
        return None
    return f"{module}:{name}" if found is make else None


def _pickled(make: MakeTask, name: str) -> str:
    """Return the text of the pickled function.

    Errors: `UserMistake` if it cannot be pickled, or is too large to be sent.
    """
    try:
        text = text_of(_dumped(make))
    except Exception as error:
        raise UserMistake(
            f"task {name} does not travel to the run's processes: {_culprits(make)}{error}; make "
            "that object inside the function, or put the task into a module and set "
            'task.target = "module:function"'
        ) from error
    if len(text) > MOST_CHARACTERS:
        raise UserMistake(
            f"task {name} does not travel to the run's processes: pickled and compressed it has "
            f"{len(text) / 1024:.0f} KiB, and at most {MOST_CHARACTERS / 1024:.0f} KiB are sent. "
            f"{_largest(make)}Read large data from a file inside the function"
        )
    return text


def _dumped(value: object) -> bytes:
    """Pickle a value as Ray does: objects of `__main__` by value, those of modules by name."""
    from ray import cloudpickle

    return cloudpickle.dumps(value)  # pyright: ignore[reportPrivateImportUsage]


def _culprits(make: MakeTask) -> str:
    """Return the variables that cannot be pickled, as the beginning of a sentence."""
    from ray.util.check_serialize import inspect_serializability

    _, failures = inspect_serializability(make, print_file=io.StringIO())
    found = sorted({_variable(make, failure.path) for failure in failures if failure.path})
    return f"variable {' and '.join(found[:_NAMED])} cannot be pickled: " if found else ""


def _variable(make: MakeTask, path: Sequence[str]) -> str:
    """Return the variable on this path and its type; the path may lead on into the variable."""
    function, value = make, None
    for depth, name in enumerate(path, 1):
        value = _variables(function).get(name)
        if not inspect.isfunction(value):
            return f"{'.'.join(path[:depth])} ({type(value).__name__})"
        function = value
    return f"{'.'.join(path)} ({type(value).__name__})"


def _variables(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the global and enclosing variables that the body of a function names."""
    if not inspect.isfunction(function):
        return {}
    closure = inspect.getclosurevars(function)
    return {**closure.globals, **closure.nonlocals}


def _largest(make: MakeTask) -> str:
    """Return the largest variable that the function uses, as a sentence; empty if it has none."""
    sizes = {
        name: len(_dumped(value))
        for name, value in _used_by(make, set()).items()
        if not isinstance(value, type) and not hasattr(value, "__code__")
    }
    if not sizes:
        return ""
    name = max(sizes, key=lambda each: sizes[each])
    return f"Its largest variable is {name}, with {sizes[name] / 1024:.0f} KiB. "


def _used_by(make: Any, seen: set[int]) -> dict[str, Any]:
    """Return the global and enclosing variables of a function, and of functions among them."""
    if id(make) in seen or not inspect.isfunction(make):
        return {}
    seen.add(id(make))
    used = {name: value for name, value in _variables(make).items() if not inspect.ismodule(value)}
    for value in [*used.values()]:
        if getattr(value, "__module__", None) == "__main__":
            used |= _used_by(value, seen)
    return used
