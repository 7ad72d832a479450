"""Protocols of everything that the syncer reaches: shards, learners, disk, and its tape."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from cluster.failures import Answered
from cluster.syncer.collect import Handed
from coordinator.protocol import (
    Discard,
    Effect,
    Event,
    Fragment,
    Life,
    Merge,
    Merged,
    Progress,
    Publish,
    Store,
    Unsound,
    Void,
)


class Ports(Protocol):
    """The interface to shards, learners and disk."""

    async def watch(self, life: Life) -> str:
        """Return the reason when the life is over; this may never return."""
        ...

    async def collect(self, life: Life, fragment: Fragment) -> Handed:
        """Have the shard ask the learner for its contribution to a fragment."""
        ...

    async def merge(self, order: Merge) -> Merged | Unsound | None:
        """Have the shard merge, and return the outcome; None if the shard has died."""
        ...

    async def store(self, order: Store) -> bool | str | None:
        """Make a merged version durable.

        Returns True if it is durable, False if it is not its turn to be stored, a reason if it
        could not be, and None if the shard has died.
        """
        ...

    async def publish(self, order: Publish) -> Answered:
        """Send a version to learners; if the shard has died, it is public when that is back."""
        ...

    async def discard(self, order: Discard) -> None:
        """Have the shard free a contribution."""
        ...

    async def cease(self, order: Void) -> None:
        """Notify a learner that its life is over."""
        ...

    async def park(self, life: Life) -> None:
        """Have the learner stop stepping and continue to hand in."""
        ...

    async def leave(self, life: Life) -> Progress | None:
        """Have the learner end its life for good; return its progress, None if it died before."""
        ...

    async def break_down(self, life: Life, why: str) -> None:
        """Restart the process that had this life; a no-op if there is no process."""
        return


class Log(Protocol):
    """The tape: every event is appended before its effects are carried out."""

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """Append an event and its effects."""
        ...

    def flush(self) -> Future[None] | None:
        """Make everything appended so far durable: at once (None), or when the result is done."""
        ...
