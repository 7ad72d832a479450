"""A task or an optimizer of a notebook or a script as settings, which travel with a run."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from cluster.config.load import tables_of
from cluster.config.optimizer_checks import OF_LOSS_SCALE, OF_RATE
from cluster.config.schema import Config
from coordinator.errors import UserMistake
from islands.pickled_task import MOST_CHARACTERS, digest_of, init_of_skeleton, text_of
from islands.user_lines import place_of

if TYPE_CHECKING:
    import optax

    from islands.task import Task

MakeTask = Callable[..., "Task"]
"""A function `(data: DataSpec, **options) -> Task`."""
MakeOptimizer = Union["optax.GradientTransformation", Callable[..., "optax.GradientTransformation"]]
"""A transformation, or a function `(**options)` that returns one."""
_MODEL = frozenset({"preset", "target", "pickled"})
"""The keys of `[task]` that name the model, or carry it."""
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
    return _settings(make, "task")


def optimizer_settings(given: MakeOptimizer) -> dict[str, str]:
    """Return the keys of `[optimizer]` that name this optimizer, or carry it.

    Errors: `UserMistake` if it is neither a transformation nor a function, or cannot be pickled.
    """
    if isinstance(given, tuple) and hasattr(given, "update"):
        transformation: Any = given

        def optimizer_object() -> Any:
            return transformation

        what = f"{place_of(transformation.update)}optimizer="
        return {"target": "__main__:optimizer", "pickled": _pickled(optimizer_object, what)}
    if not callable(given):
        raise UserMistake(
            f"optimizer= is {_kind(given)}: give an optax.GradientTransformation, or a function "
            "(**options) that returns one"
        )
    return _settings(given, "optimizer")


def _settings(make: Callable[..., Any], table: str) -> dict[str, str]:
    if (target := _importable(make)) is not None:
        return {"target": target}
    name = _name_of(make)
    what = f"{place_of(make)}{table} {name}"
    return {"target": name, "pickled": _pickled(make, what, table)}


def with_task(tables: Mapping[str, Any], make: MakeTask) -> dict[str, Any]:
    """Return the tables of a configuration with this task in place of its preset or target.

    All other keys of `[task]` are kept, such as `options`, `init_from` and `compute_dtype`.
    """
    before = tables.get("task", {})
    kept = {key: value for key, value in before.items() if key not in _MODEL}
    return {**tables, "task": {**kept, **settings_of(make)}}


def with_optimizer(tables: Mapping[str, Any], given: MakeOptimizer) -> dict[str, Any]:
    """Return the tables of a configuration with this optimizer in place of its kind or target.

    The keys of the built-in optimizers are left out, and the schedule is kept. Without a schedule
    and a learning rate, the optimizer has its own: the schedule is "target".
    """
    kept = {"options", "schedule", "decay_fraction", *OF_RATE, *OF_LOSS_SCALE}
    before = tables.get("optimizer", {})
    table = {key: value for key, value in before.items() if key in kept}
    if not table.keys() & {"schedule", "learning_rate"}:
        kept = {"options", *OF_LOSS_SCALE}
        table = {"schedule": "target", **{key: table[key] for key in kept & table.keys()}}
    return {**tables, "optimizer": {**table, **optimizer_settings(given)}}


def check_resumed(config: Config, config_path: Path) -> None:
    """Check that a run would be resumed with the pickled functions that it began with.

    Errors: `UserMistake` if it began with others. Pickles of the same source differ from one
    notebook to the next, so the run's own ones are the only right ones.
    """
    try:
        tables = tables_of(config_path)
    except UserMistake:  # the run's own checks report this file
        return
    given = {"task": config.task.pickled, "optimizer": config.optimizer.pickled}
    for table, pickled in given.items():
        began_with = tables.get(table, {}).get("pickled")
        if pickled is not None and pickled != began_with:
            began = "none" if began_with is None else digest_of(str(began_with))
            raise UserMistake(
                f"resume: the pickled {table} {digest_of(pickled)} is not the one that the run "
                f"began with, {began}: leave {table}= out, and give {config_path}, which has the "
                "run's own"
            )


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _name_of(make: Callable[..., Any]) -> str:
    """Return "module:function" for messages, with characters that the key `target` allows."""
    module = str(getattr(make, "__module__", None) or "__main__")
    name = str(getattr(make, "__qualname__", type(make).__qualname__))
    return f"{module}:{re.sub(r'[^0-9A-Za-z_.]+', '_', name)}"


def _importable(make: Callable[..., Any]) -> str | None:
    """Return "module:function" if other processes can import it so; None if they cannot."""
    module, name = getattr(make, "__module__", None), getattr(make, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:  # a module that was made at run time
        return None
    return f"{module}:{name}" if found is make else None


def _pickled(make: Callable[..., Any], what: str, table: str = "optimizer") -> str:
    """Return the text of the pickled function.

    Errors: `UserMistake` if it cannot be pickled, or is too large to be sent.
    """
    try:
        text = text_of(_dumped(make))
    except Exception as error:
        raise UserMistake(
            f"{what} does not travel to the run's processes: {_culprits(make)}{error}; make "
            "that object inside the function, or put it into a module and set "
            f'{table}.target = "module:function"'
        ) from error
    if len(text) > MOST_CHARACTERS:
        raise UserMistake(
            f"{what} does not travel to the run's processes: pickled and compressed it has "
            f"{len(text) / 1024:.0f} KiB, and at most {MOST_CHARACTERS / 1024:.0f} KiB are sent. "
            f"{_largest(make)}Read large data from a file inside the function"
        )
    return text


def _dumped(value: object) -> bytes:
    """Pickle a value as Ray does: objects of `__main__` by value, those of modules by name.

    A class of Equinox gets its fields when it is made again, and not afterwards as other classes
    do: its metaclass derives the pytree from them.
    """
    from ray.cloudpickle import Pickler  # pyright: ignore[reportPrivateImportUsage]

    class ModelPickler(Pickler):
        """Ray's pickler, with the fields of Equinox classes."""

        def reducer_override(self, obj: Any) -> Any:
            """Return how an object is made again."""
            reduced: Any = super().reducer_override(obj)
            if not (isinstance(reduced, tuple) and _is_equinox_class(obj)):
                return reduced
            make, (metaclass, name, bases, namespace, *more), *rest = reduced
            return make, (metaclass, name, bases, {**namespace, **_fields(obj)}, *more), *rest

    with io.BytesIO() as file:
        ModelPickler(file).dump(value)
        return file.getvalue()


def _is_equinox_class(value: object) -> bool:
    own = type(value).__module__.partition(".")[0] == "equinox"
    return own and isinstance(value, type) and dataclasses.is_dataclass(value)


def _fields(cls: Any) -> dict[str, Any]:
    """Return the part of a class's body that declares its own fields and whether it has `__init__`.

    No annotation is in it, because it may refer to the class itself; the pickle sets them later.
    """
    declared = {name: copy.copy(field) for name, field in _own_fields(cls).items()}
    for field in declared.values():
        field.type = Any
    body: dict[str, Any] = {"__annotations__": dict.fromkeys(declared, Any), **declared}
    if "__init__" in vars(cls) and not cls.__dataclass_params__.init:
        body["__init__"] = init_of_skeleton
    return body


def _own_fields(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    own = vars(cls).get("__annotations__", {})
    return {field.name: field for field in dataclasses.fields(cls) if field.name in own}


def _culprits(make: Callable[..., Any]) -> str:
    """Return the variables that cannot be pickled, as the beginning of a sentence."""
    from ray.util.check_serialize import inspect_serializability

    _, failures = inspect_serializability(make, print_file=io.StringIO())
    found = sorted({_variable(make, failure.path) for failure in failures if failure.path})
    return f"variable {' and '.join(found[:_NAMED])} cannot be pickled: " if found else ""


def _variable(make: Callable[..., Any], path: Sequence[str]) -> str:
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


def _largest(make: Callable[..., Any]) -> str:
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
