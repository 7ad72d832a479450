"""The threads of an island for each kind of call, and the fence around each call."""

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
"""Threads of an island for each kind of call, so that no kind waits behind another.

Joining learners wait on "giving" while moments are copied and stored, so they hold up neither
hand-ins nor offers. Calls beyond the number of threads wait in turn.
"""
F = TypeVar("F", bound=Callable[..., Any])


def its_own(group: str, reason: Reason) -> Callable[[F], F]:
    """Run a method of an actor on this group of threads, and fence its exceptions off.

    An exception is this island's own failure and ends its `process`. The caller does not receive
    it, but Ray's error that the island died. One decorator does both: Ray reads its marks from the
    innermost function.
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
