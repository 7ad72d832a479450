"""Recovery of a restarted process from the depot, on the first call that needs it.

A depot that does not answer passes: each later call may try once more, without a limit. Content
that cannot be used does not pass: that ends the recovery for good.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from cluster.actors.call_errors import cause_of
from coordinator.errors import ArchipelagoError, RunFailed, Unreachable

T = TypeVar("T")
FIRST_S, LONGEST_S = 0.5, 10.0
"""Seconds of the first pause after a failed attempt, and of the longest; each one doubles."""


class BringUp(Generic[T]):
    """The state of a restarted process, for one event loop; `made` is the state once it exists."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Awaitable[T]],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Recover with `make` on first use; `name` names the state in error messages."""
        self._name, self._make, self._now_s = name, make, now_s
        self._lock = asyncio.Lock()
        self._refusal: ArchipelagoError | None = None  # the answer until `_until_s`
        self._until_s, self._pause_s = -math.inf, FIRST_S
        self.made: T | None = None

    async def ready(self) -> T:
        """Return the state, and make it first if this process has not made it yet.

        An attempt that fails with `OSError` is followed by a pause. A call during the pause is
        answered at once; a call during an attempt waits for it. The caller repeats the call.

        Errors: `Unreachable` if the depot does not answer at present; `RunFailed` if its content is
        unusable, which every later call raises again.
        """
        async with self._lock:
            if self.made is None:
                if self._refusal is not None and self._now_s() < self._until_s:
                    raise self._refusal
                self.made = await self._attempt()
        return self.made

    async def _attempt(self) -> T:
        try:
            return await self._make()
        except Exception as error:
            match cause := cause_of(error):
                case ArchipelagoError():
                    self._refusal = RunFailed(f"{self._name} cannot come back: {cause}")
                    self._until_s = math.inf
                case OSError():
                    pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_S)
                    self._refusal = Unreachable(
                        f"{self._name} cannot come back yet, its storage does not answer: {cause}; "
                        f"it tries again every {LONGEST_S:g} s"
                    )
                    self._until_s = self._now_s() + pause_s
                case _:
                    raise
            logging.warning("%s", self._refusal)
            raise self._refusal from error
