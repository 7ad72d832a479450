"""The threads of an island for calls of each kind, and the fence around each call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import ray

from cluster.failures import Reason

THREADS = {
    "asking": 16,
    "offering": 4,
    "giving": 8,
    "control": 4,
    "watching": 8,
    "breaking": 4,
}
"""Threads of an island for calls of each kind, so that none waits behind another kind. Learners
that join wait for moments on "giving" for as long as these are copied and stored, so that they hold
up neither hand-ins nor offers; those for whom there is no thread wait as long as the others."""
F = TypeVar("F", bound=Callable[..., Any])


def its_own(group: str, reason: Reason) -> Callable[[F], F]:
    """Make a method of an actor a call of this group of threads.

    Whatever it raises is this island's affair, and ends its `process`: nothing of it gets to the
    caller, who hears that the island died. One decorator does both, since Ray reads its marks from
    the innermost function.
    """

    def fence(method: F) -> F:
        marked: Any = ray.method(concurrency_group=group)(method)

        @functools.wraps(marked)
        def fenced(self: Any, *arguments: Any) -> Any:
            try:
                return method(self, *arguments)
            except BaseException as error:  # noqa: BLE001 - which ends the process
                self.process.break_down(reason, error)

        return cast("F", fenced)

    return fence
