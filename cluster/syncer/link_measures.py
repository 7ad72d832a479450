"""The measures of links: bytes and seconds of transfers, the usual rate, and what deviates from it.

A link lies between the shards and the islands of one region, or of one group without a region. Its
two directions are measured apart: `up` carries contributions, `down` publications. The usual rate
of a link comes from its own last hour, so no configuration has to state what a link can carry.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cluster.status import LinkStatus
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
)
from coordinator.state import State

Direction = Literal["up", "down"]

INTERVAL_S = 15.0
"""Seconds of transfers of which one median is kept."""
KEPT = 240
"""Intervals that are kept: an hour, if each has a transfer."""
SLOW_INTERVALS, KNOWN_INTERVALS = 4, 8
"""Intervals that must be slow, and those before them that a usual rate needs."""
SLOW_SHARE = 0.5
"""The share of its usual rate below which a link is slow."""
SLOW_FROM_S = 0.1
"""Seconds of a transfer below which no link counts as slow: such times vary with the CPU's load."""
DOWN_S, DOWN_GAPS = 60.0, 5.0
"""A link is down after so many seconds without a transfer, and so many of its usual gaps."""
LOST_S = 600.0
"""Seconds after its last message for which a lost island counts as one of its link.

One that was scaled away while it was lost stays lost to the rules, and needs no link.
"""
GAP_SMOOTHING = 0.1
"""Weight of the newest gap between two transfers in its moving average."""


@dataclass(slots=True)
class LinkCounts:
    """The counters of one direction of a link; plain data that outlives the process."""

    nbytes: int = 0
    """Bytes of all transfers."""
    transfers: int = 0
    seconds: float = 0.0
    """Seconds of all transfers, summed."""
    late: int = 0
    """Transfers that took longer than the overlap."""
    last_s: float = math.nan
    """The time at which the last transfer ended."""
    gap_s: float = math.nan
    """Seconds between the ends of two transfers, a moving average."""
    began_s: float = math.nan
    """The time at which the present interval began."""
    present: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """The rate in bit/s and the seconds of each transfer in the present interval."""
    medians: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Medians of the rate and the seconds in each earlier interval, oldest first."""


def link_of(member: Member) -> str:
    """Return the name of a member's link: its region, or its group if it has none."""
    return member.region or member.group


def carried(
    counts: LinkCounts, nbytes: int, seconds: float, *, allowed_s: float, now_s: float
) -> None:
    """Count one transfer that has ended at `now_s`.

    `allowed_s`: the seconds of the overlap; a transfer that takes longer is late.
    """
    counts.nbytes += nbytes
    counts.transfers += 1
    counts.seconds += seconds
    counts.late += seconds > allowed_s
    if not math.isnan(counts.last_s):
        gap_s = max(0.0, now_s - counts.last_s)
        old_s = gap_s if math.isnan(counts.gap_s) else counts.gap_s
        counts.gap_s = old_s + GAP_SMOOTHING * (gap_s - old_s)
    counts.last_s = now_s
    if not counts.present:
        counts.began_s = now_s
    elif now_s - counts.began_s >= INTERVAL_S:
        rates, times = zip(*counts.present, strict=True)
        counts.medians.append((statistics.median(rates), statistics.median(times)))
        del counts.medians[:-KEPT]
        counts.present.clear()
        counts.began_s = now_s
    counts.present.append((8 * nbytes / max(seconds, 1e-6), seconds))


def is_slow(counts: LinkCounts) -> bool:
    """Return whether the last intervals had less than half of the usual rate, all of them."""
    known, newest = counts.medians[:-SLOW_INTERVALS], counts.medians[-SLOW_INTERVALS:]
    if len(known) < KNOWN_INTERVALS:
        return False
    least = SLOW_SHARE * statistics.median(rate for rate, _ in known)
    return all(rate < least and took_s > SLOW_FROM_S for rate, took_s in newest)


def is_down(counts: LinkCounts, now_s: float) -> bool:
    """Return whether nothing has come for far longer than usual."""
    gap_s = 0.0 if math.isnan(counts.gap_s) else counts.gap_s
    return now_s - counts.last_s > max(DOWN_S, DOWN_GAPS * gap_s)  # never, if there was none yet


class Sent(NamedTuple):
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
        self._sent: dict[Fragment, Sent] = {}
        self._before: dict[Fragment, Sent] = {}  # its deliveries are known after the next is sent

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
            self._fall_behind(before, ())
        if p in self._sent:
            self._before[p] = self._sent[p]
        self._sent[p] = Sent(order, nbytes, now_s)

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
        self._fall_behind(sent, [life for life, _ in event.after_s])

    def _fall_behind(self, sent: Sent, reached: Collection[Life]) -> None:
        for life in sent.order.to:
            if life not in reached:
                self._behind.setdefault((life, sent.order.fragment), sent.at_s)

    def _carried(
        self,
        counts: dict[str, LinkCounts],
        state: State,
        direction: Direction,
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
        """Yield the status of each direction of each link."""
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
            yield _row(
                record,
                link,
                "up" if direction == "up" else "down",
                queue_s=now_s - min(since_s, default=now_s),
                down=link in wanted and is_down(record, now_s),
            )


def _row(
    record: LinkCounts, link: str, direction: Direction, *, queue_s: float, down: bool
) -> LinkStatus:
    rates = [rate for rate, _ in record.medians]
    usual = statistics.median(rates) if rates else None
    spread = None
    if usual is not None and len(rates) > 1:
        spread = statistics.median(abs(rate - usual) for rate in rates) / usual
    newest = statistics.median(rate for rate, _ in record.present) if record.present else None
    return LinkStatus(
        link=link,
        direction=direction,
        bytes=record.nbytes,
        transfers=record.transfers,
        transfer_s=record.seconds,
        late=record.late,
        bits_s=newest,
        usual_bits_s=usual,
        spread=spread,
        queue_s=queue_s,
        slow=is_slow(record),
        down=down,
    )
