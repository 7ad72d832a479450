"""Recovery of a restarted process from the depot, on the first call that needs it.

A depot that does not answer passes: each later call may try once more, without a limit. A depot
that hangs passes, too: its attempt continues, and calls are answered with an error meanwhile.
Content that cannot be used does not pass: that ends the recovery for good.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from cluster.actors.call_errors import cause_of
from cluster.tasks import Tasks
from coordinator.errors import ArchipelagoError, RunFailed, Unreachable

T = TypeVar("T")
FIRST_S, LONGEST_S = 0.5, 10.0
"""Seconds of the first pause after a failed attempt, and of the longest; each one doubles."""
SILENCE_S = 10.0
"""Seconds without progress of an attempt after which a call is not kept waiting any longer."""


class BringUp(Generic[T]):
    """The state of a restarted process, for one event loop; `made` is the state once it exists."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Awaitable[T]],
        now_s: Callable[[], float] = time.monotonic,
        progress: Callable[[], object] = lambda: None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Recover with `make` on first use; `name` names the state in error messages.

        `progress`: returns a new value whenever an attempt has made progress. `silence_s`: see
        `SILENCE_S`.
        """
        self._name, self._make, self._now_s = name, make, now_s
        self._progress, self._silence_s = progress, silence_s
        self._tasks, self._under_way = Tasks(), list[asyncio.Task[T]]()  # at most one attempt
        self._moved: tuple[object, float] = None, now_s()  # the last progress, and when
        self._is_silent = False
        self._refusal: ArchipelagoError | None = None  # the answer until `_until_s`
        self._until_s, self._pause_s = -math.inf, FIRST_S
        self.made: T | None = None

    async def ready(self) -> T:
        """Return the state, and make it first if this process has not made it yet.

        An attempt that fails with `OSError` is followed by a pause. A call during the pause is
        answered at once; a call during an attempt waits for it as long as it makes progress. The
        caller repeats the call. There is one attempt at a time, and one that hangs is never
        repeated.

        Errors: `Unreachable` if the depot does not answer at present; `RunFailed` if its content is
        unusable, which every later call raises again.
        """
        if self.made is not None:
            return self.made
        if not self._under_way:
            if self._refusal is not None and self._now_s() < self._until_s:
                raise self._refusal
            self._moved, self._is_silent = (self._progress(), self._now_s()), False
            self._under_way = [self._tasks.spawn(self._attempt())]
        (attempt,) = self._under_way
        while not (await asyncio.wait({attempt}, timeout=self._silence_s))[0]:
            self._check_progress()
        return attempt.result()

    def _check_progress(self) -> None:
        """Check that the attempt makes progress.

        Errors: `Unreachable` if it has made none for `silence_s`.
        """
        now_s, progress = self._now_s(), self._progress()
        if progress != self._moved[0]:
            self._moved, self._is_silent = (progress, now_s), False
        if (silent_s := now_s - self._moved[1]) < self._silence_s:
            return
        silent = Unreachable(
            f"{self._name} cannot come back yet, its recovery has made no progress for "
            f"{silent_s:.0f} s: its storage, or that of a shard, hangs or is slow; it continues "
            "when the storage answers"
        )
        if not self._is_silent:
            logging.warning("%s", silent)
        self._is_silent = True
        raise silent

    async def _attempt(self) -> T:
        try:
            self.made = made = await self._make()
            return made
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
        finally:
            self._under_way = []
