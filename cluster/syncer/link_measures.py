"""The transfers on the links, from the events of the rules.

A link lies between the shards and the islands of one region, or of one group without a region. Its
two directions are measured apart: `up` carries contributions, `down` publications.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from cluster.status import LinkStatus
from cluster.syncer.link_counts import LinkCounts, LinkDirection, carried, row_of
from cluster.transfers import Upload
from coordinator.membership import SPEAKING, Member, Status
from coordinator.protocol import (
    Arrived,
    Ask,
    Effect,
    Event,
    Fragment,
    Life,
    Missing,
    Publish,
    Reached,
    Resume,
    ShardBack,
)
from coordinator.state import State

LOST_S = 600.0
"""Seconds after its last message for which a lost island counts as one of its link.

One that was scaled away while it was lost stays lost to the rules, and needs no link.
"""


def link_of(member: Member) -> str:
    """Return the name of a member's link: its region, or its group if it has none."""
    return member.region or member.group


class SentPublication(NamedTuple):
    """One publication, on its way to learners."""

    order: Publish
    nbytes: int
    """Bytes to each learner."""
    at_s: float


class LinkWatch:
    """The transfers under way on the links, from the rules' events; not kept over a restart."""

    def __init__(self, overlap: int) -> None:
        """Start with nothing under way; `overlap`: inner steps that a transfer may take."""
        self._overlap_steps = max(1, overlap)
        self._asked: dict[tuple[Life, Fragment], float] = {}
        self._behind: dict[tuple[Life, Fragment], float] = {}
        self._sent: dict[Fragment, SentPublication] = {}
        self._before: dict[
            Fragment, SentPublication
        ] = {}  # its deliveries are known after the next is sent

    def saw(
        self,
        counts: dict[str, LinkCounts],
        state: State,
        event: Event,
        effects: Sequence[Effect],
        now_s: float,
    ) -> None:
        """Record requests for contributions, their answers, and publications that were received."""
        if isinstance(event, Reached):
            self._reached(counts, state, event, now_s)
        elif isinstance(event, Missing):
            self._asked.pop((event.life, event.fragment), None)
        elif isinstance(event, Arrived):
            answered = event.contribution.id
            self._asked.pop((answered.life, answered.fragment), None)
        elif isinstance(event, Resume) or _is_back(event, state):
            _count_from_now(counts, now_s)
        for effect in effects:
            if isinstance(effect, Ask):
                self._asked.setdefault((effect.life, effect.fragment), now_s)

    def uploads(
        self, counts: dict[str, LinkCounts], state: State, uploads: Sequence[Upload], now_s: float
    ) -> None:
        """Count the transfers of contributions that a shard has received."""
        for life, nbytes, seconds in uploads:
            self._carried(counts, state, "up", life, nbytes, seconds, now_s)

    def published(self, order: Publish, nbytes: int, now_s: float) -> None:
        """Note a publication of that many bytes to each learner."""
        p = order.fragment
        if (before := self._before.pop(p, None)) is not None:  # it has reached no learner
            self._fall_behind(before, frozenset())
        if p in self._sent:
            self._before[p] = self._sent[p]
        self._sent[p] = SentPublication(order, nbytes, now_s)

    def _reached(
        self, counts: dict[str, LinkCounts], state: State, event: Reached, now_s: float
    ) -> None:
        """Count the transfers of the publication before a fragment's last one.

        Learners that had not received it when the next one was sent are behind since it was sent.
        """
        p = event.fragment
        sent = self._before.get(p)
        if sent is None or sent.order.version != event.version:
            return
        del self._before[p]
        for life, seconds in event.after_s:
            self._behind.pop((life, p), None)
            self._carried(counts, state, "down", life, sent.nbytes, seconds, now_s)
        self._fall_behind(sent, {life for life, _ in event.after_s})

    def _fall_behind(self, sent: SentPublication, reached: Set[Life]) -> None:
        for life in sent.order.to:
            if life not in reached:
                self._behind.setdefault((life, sent.order.fragment), sent.at_s)

    def _carried(
        self,
        counts: dict[str, LinkCounts],
        state: State,
        direction: LinkDirection,
        life: Life,
        nbytes: int,
        seconds: float,
        now_s: float,
    ) -> None:
        if (member := state.members.get(life.island)) is None or not 0 <= seconds < math.inf:
            return
        allowed_s = self._overlap_steps * member.step_s or math.inf
        record = counts.setdefault(f"{link_of(member)} {direction}", LinkCounts())
        carried(record, nbytes, seconds, allowed_s=allowed_s, now_s=now_s)

    def rows(
        self, counts: dict[str, LinkCounts], state: State, now_s: float
    ) -> Iterator[LinkStatus]:
        """Yield the status of each direction of each link.

        A link without islands has no trouble: nothing is sent that could end it. No link is down
        while all shards are away.
        """
        served = not all(fragment.away for fragment in state.fragments)
        speaking = {m.life: m for m in state.members.values() if m.status in SPEAKING}
        for waits in (self._asked, self._behind):
            for key in [key for key in waits if key[0] not in speaking]:
                del waits[key]
        wanted = {
            link_of(m) for m in state.members.values()
            if m.status in SPEAKING
            or (m.status is Status.LOST and now_s - m.heard_s <= LOST_S)
        }  # fmt: skip
        for name, record in counts.items():
            link, _, direction = name.rpartition(" ")
            waits = self._asked if direction == "up" else self._behind
            since_s = [at for (life, _), at in waits.items() if link_of(speaking[life]) == link]
            yield row_of(
                record,
                link,
                "up" if direction == "up" else "down",
                now_s,
                queue_s=now_s - min(since_s, default=now_s),
                wanted=link in wanted,
                served=served,
            )


def _is_back(event: Event, state: State) -> bool:
    """Return whether shards are back while all others are away."""
    return isinstance(event, ShardBack) and all(
        each.away or p in event.fragments for p, each in enumerate(state.fragments)
    )


def _count_from_now(counts: dict[str, LinkCounts], now_s: float) -> None:
    """Let the silence of each link begin now: nothing could come before."""
    for record in counts.values():
        if not math.isnan(record.last_s):  # there was a transfer before
            record.last_s = now_s
