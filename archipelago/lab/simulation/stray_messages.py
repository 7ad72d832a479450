"""The events that reach a simulated syncer too late, again, or by mistake."""

from __future__ import annotations

from collections.abc import Sequence

from archipelago.lab.simulation.site import SimSite
from coordinator.membership import Status
from coordinator.protocol import (
    Event,
    Fragment,
    Island,
    Join,
    LeaseWanted,
    Left,
    Lost,
    Missing,
    Resume,
    ShardBack,
    ShardLost,
    Stop,
    Tick,
)

RECENT = 40
"""The last events of a kind, of which an echo repeats one."""


def stray(site: SimSite, island: Island) -> None:
    """Send the syncer events that mean nothing, or that come too late."""
    if site.syncer is None:
        return
    member, rng = site.syncer.state.members.get(island), site.rng
    if member is not None and rng.random() < 0.5:
        site.syncer.left(Left(member.life, member.progress))  # it leaves by itself
    if member is not None and member.status not in (Status.JOINING, Status.LIVE):
        site.syncer.drain(island, "too late")
        site.syncer.feed(Missing(member.life, Fragment(0), "too late"))
        site.syncer.lease(LeaseWanted(member.life))
    site.syncer.drain(Island("nobody"), "a mistake")
    site.syncer.join(Join(Island("stranger"), "group", "another"))


def echo(site: SimSite, tape: Sequence[tuple[float, Event]], times: int) -> None:
    """Repeat events of the tape to the syncer; each kind of event is equally likely."""
    kinds: dict[str, list[Event]] = {}
    for _, event in tape:
        if not isinstance(event, (Tick, Stop, Resume, ShardLost, ShardBack)):
            kinds.setdefault(type(event).__name__, []).append(event)
    for _ in range(times):
        if site.syncer is None or not kinds:
            return
        events = kinds[site.rng.choice(sorted(kinds))]
        event = site.rng.choice(events[-RECENT:])
        if isinstance(event, (Join, Lost)):
            site.suspect(event.island if isinstance(event, Join) else event.life.island)
        site.syncer.feed(event)
