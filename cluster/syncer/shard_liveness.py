"""Which shards are there, as the syncer's shell sees it.

Calls in flight when a shard dies fail with `Away`; late replies of the dead process are dropped.
Nothing is asked of it until it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from cluster.tasks import Tasks

T = TypeVar("T")


class Away(Exception):
    """The shard is dead, or died before it had answered."""


class _ShardSlot:
    """Of one shard; `life` counts its deaths."""

    def __init__(self) -> None:
        self.life = 0
        self.there, self.missed = asyncio.Event(), asyncio.Event()
        self.there.set()


class Attendance:
    """Liveness of each shard, by name; to be used on one event loop."""

    def __init__(self, names: Iterable[str], dead: tuple[type[Exception], ...]) -> None:
        """`dead`: what a call raises whose callee has died, or is not the one that was meant."""
        self._seats, self._dead = {name: _ShardSlot() for name in names}, dead
        self._tasks = Tasks()

    async def ask(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """What the shard answers.

        Errors: `Away`; what else the call raises.
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
        """Return when the shard is dead: `watch` ends, or something asked of it has failed. From
        then on it is away.

        Errors: what else `watch` raises.
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
        return self._seats[name].life

    def is_back(self, name: str) -> None:
        self._seats[name].there.set()

    async def until_back(self, name: str) -> None:
        """Return at once if it is there."""
        await self._seats[name].there.wait()


async def _until(ended: Awaitable[object]) -> None:
    await ended
