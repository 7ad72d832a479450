"""Replay of a real run's events through the shell, in the simulator's virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archipelago.lab.virtual.event_loop import VirtualLoop, running
from cluster.failures import Answered
from cluster.storage.playback import TapeRow
from cluster.syncer.measures import Measures
from cluster.syncer.ports import Log, Ports
from cluster.syncer.shell import Syncer
from coordinator.codec import Wire
from coordinator.protocol import (
    Contribution,
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
    Void,
)
from coordinator.state import Rule, initial

PortCall = tuple[object, ...]
"""A call of the shell to a port: its name and its arguments."""


class UnansweredPorts(Ports):
    """Ports that record every order and answer none; the tape has the answers."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.deeds: list[PortCall] = []

    async def _hear(self, *deed: object) -> None:
        self.deeds.append(deed)
        await self._loop.create_future()

    async def watch(self, life: Life) -> str:
        await self._hear("watch", life)
        return ""

    async def collect(self, life: Life, fragment: Fragment) -> Contribution | str:
        await self._hear("collect", life, fragment)
        return ""

    async def merge(self, order: Merge) -> Merged | None:
        await self._hear("merge", order)
        return None

    async def store(self, order: Store) -> bool | str | None:
        await self._hear("store", order)
        return True

    async def publish(self, order: Publish) -> Answered:
        await self._hear("publish", order)
        return Answered()

    async def discard(self, order: Discard) -> None:
        await self._hear("discard", order)

    async def cease(self, order: Void) -> None:
        await self._hear("cease", order)

    async def park(self, life: Life) -> None:
        await self._hear("park", life)

    async def leave(self, life: Life) -> Progress | None:
        await self._hear("leave", life)
        return None


class NoTape(Log):
    """A tape that stores nothing."""

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None: ...

    def flush(self) -> None: ...


def replayed(
    rule: Rule, rows: Sequence[TapeRow]
) -> Iterator[tuple[TapeRow, tuple[Effect, ...], list[PortCall]]]:
    """Yield each event, the present answer of the rules, and the calls of the shell."""
    loop = VirtualLoop()
    world = UnansweredPorts(loop)
    now_s = rows[0].now_s
    measures = Measures("again", {}, [1] * rule.schedule.fragments, Wire.F32, now_s=now_s)
    with running(loop):
        syncer = Syncer(
            rule, initial(rule), world, now_s=lambda: now_s, tape=NoTape(), measures=measures
        )
        for row in rows:
            now_s = row.now_s
            effects = syncer.feed(row.event)
            loop.run(loop.now_s, lambda: False)
            yield row, effects, world.deeds
            world.deeds = []
        syncer.close()
        loop.finish()
