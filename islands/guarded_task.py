"""The functions of a user's task, whose errors are messages with the user's line first.

The checks of a start call `init`, the losses and `frozen` themselves (`islands.trainable`). The
functions here are called in many places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from islands.user_code import asked
from islands.user_lines import place_of

T = TypeVar("T")
GUARDED = ("tokens", "stream", "heldout", "stacked", "embedding", "sharding")
"""The fields of a task that are guarded."""


@dataclass(frozen=True, slots=True)
class GuardedFunction:
    """A function of a user's task; its errors are `UserMistake`."""

    user_callable: Callable[..., Any]
    """The user's own function."""
    setting: str
    """The name of the function in a message."""

    def __call__(self, *values: Any) -> Any:
        """Return what the function returns.

        Errors: `UserMistake` if it raises, with the user's line; an error of ours, unchanged.
        """
        call = self.user_callable
        return asked(self.setting, lambda: call(*values), place=place_of(call))


def guarded(task: T) -> T:
    """Return a user's task with guarded functions; `task`: an `islands.task.Task`."""
    given: Any = task
    fields = {
        name: GuardedFunction(getattr(given, name), f"task {given.name}: {name}")
        for name in GUARDED
    }
    return replace(given, **fields)
