"""What the syncer reaches of the world, and its tape, as protocols."""

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
    """What the syncer reaches of the world: the shard, the learners, the disk."""

    async def watch(self, life: Life) -> str:
        """Return when the life is over, with the reason; may never return."""
        ...

    async def collect(self, life: Life, fragment: Fragment) -> Handed:
        """Have the shard call the learner."""
        ...

    async def merge(self, order: Merge) -> Merged | Unsound | None:
        """Have the shard merge, and say what has come of it; None if it has died."""
        ...

    async def store(self, order: Store) -> bool | str | None:
        """Make a merged version durable; False if it is not its turn, else why it could not be.
        None if the shard has died."""
        ...

    async def publish(self, order: Publish) -> Answered:
        """If the shard has died, the version is public as soon as it is back."""
        ...

    async def discard(self, order: Discard) -> None: ...

    async def cease(self, order: Void) -> None: ...

    async def park(self, life: Life) -> None:
        """Have the learner step no more, and go on handing in."""
        ...

    async def leave(self, life: Life) -> Progress | None:
        """Have the learner end its life for good; how far it came, None if it died before."""
        ...

    async def break_down(self, life: Life, why: str) -> None:
        """Have the process that had this life end and begin anew; nothing where there is none."""
        return


class Log(Protocol):
    """The tape: every event is written down before its effects are carried out."""

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None: ...

    def flush(self) -> Future[None] | None:
        """Make everything appended so far durable: now, or once what is returned is done."""
        ...
