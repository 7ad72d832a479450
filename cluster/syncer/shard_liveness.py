"""The liveness of the shards, as the syncer's shell sees it.

Calls in flight when a shard dies fail with `Away`. Late replies of the dead process are dropped. No
call is made until the shard is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from cluster.tasks import Tasks

T = TypeVar("T")


class Away(Exception):
    """The shard is dead, or has died before it answered."""


class _ShardSlot:
    """The liveness of one shard; `life` counts its deaths."""

    def __init__(self) -> None:
        self.life = 0
        self.there, self.missed = asyncio.Event(), asyncio.Event()
        self.there.set()


class Attendance:
    """The liveness of each shard, by name, for one event loop."""

    def __init__(self, names: Iterable[str], dead: tuple[type[Exception], ...]) -> None:
        """Start with all shards alive; `dead`: the errors of a callee that died or was replaced."""
        self._seats, self._dead = {name: _ShardSlot() for name in names}, dead
        self._tasks = Tasks()

    async def ask(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Call a shard, and return its answer.

        Errors: `Away`; any other error of the call.
        """
        seat = self._seats[name]
        life = seat.life
        if not seat.there.is_set():
            raise Away(f"{name} is dead")
        try:
            answer = await call()
        except self._dead as error:
            if seat.life == life:
                seat.missed.set()
            raise Away(f"{name} is dead: {type(error).__name__}") from error
        if seat.life != life:
            raise Away(f"{name} has died meanwhile")
        return answer

    async def until_dead(self, name: str, watch: Callable[[], Awaitable[object]]) -> None:
        """Return when the shard is dead, and mark it as away.

        It is dead when `watch` ends, or when a call of it has failed.

        Errors: any other error of `watch`.
        """
        seat = self._seats[name]
        watching = self._tasks.spawn(_until(watch()))
        missing = self._tasks.spawn(_until(seat.missed.wait()))
        try:
            await asyncio.wait((watching, missing), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                with suppress(*self._dead):
                    watching.result()
        finally:
            watching.cancel()
            missing.cancel()
        seat.life += 1
        seat.there.clear()
        seat.missed.clear()

    def deaths(self, name: str) -> int:
        """Return how often the shard has died."""
        return self._seats[name].life

    def is_back(self, name: str) -> None:
        """Mark the shard as alive."""
        self._seats[name].there.set()

    async def until_back(self, name: str) -> None:
        """Return once the shard is alive; at once if it is."""
        await self._seats[name].there.wait()


async def _until(ended: Awaitable[object]) -> None:
    await ended
