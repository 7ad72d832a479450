"""Recovery of a restarted process from the depot: once, on the first call that needs it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from cluster.actors.call_errors import cause_of
from cluster.actors.directory import AGAIN_S
from cluster.storage.open_depot import PATIENCE_S
from coordinator.errors import ArchipelagoError, RunFailed

T = TypeVar("T")


class BringUp(Generic[T]):
    """The state of a restarted process, for one event loop; `made` is the state once it exists."""

    def __init__(self, name: str, make: Callable[[], Awaitable[T]]) -> None:
        """Recover with `make` on first use; `name` names the state in error messages."""
        self._name, self._make = name, make
        self._lock = asyncio.Lock()
        self._cannot: RunFailed | None = None
        self.made: T | None = None

    async def ready(self) -> T:
        """Return the state, and make it first if this process has not made it yet.

        Errors: `RunFailed` if the depot is unreachable for `PATIENCE_S` seconds, or if its content
        is unusable; every later call raises it again.
        """
        async with self._lock:
            if self._cannot is not None:
                raise self._cannot
            end_s = time.monotonic() + PATIENCE_S
            while self.made is None:
                try:
                    self.made = await self._make()
                except (ArchipelagoError, OSError) as error:
                    if isinstance(error, OSError) and time.monotonic() < end_s:
                        logging.warning("trying again: %s", cause_of(error))
                        await asyncio.sleep(AGAIN_S)
                        continue
                    self._cannot = RunFailed(f"{self._name} cannot come back: {cause_of(error)}")
                    raise self._cannot from error
        return self.made
