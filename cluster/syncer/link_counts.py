"""The measures of one direction of a link: its usual rate, and what deviates from it.

The usual rate of a link comes from its own last hour, so no configuration has to state what a link
can carry.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from cluster.status import LinkStatus

LinkDirection = Literal["up", "down"]

INTERVAL_S = 15.0
"""Seconds of transfers of which one median is kept."""
KEPT = 240
"""Intervals that are kept: an hour, if each has a transfer."""
SLOW_INTERVALS, KNOWN_INTERVALS = 4, 8
"""Intervals that must be slow, and those before them that a usual rate needs."""
SLOW_SHARE = 0.5
"""The share of its usual rate below which a link is slow."""
LATE_SHARE = 0.5
"""The share of late transfers above which a link is lagging, as in the alert for late transfers."""
LEAST_S = 1e-6
"""The shortest time that a transfer is taken to need, in seconds."""
SLOW_FROM_S = 0.1
"""Seconds of a transfer below which no link counts as slow: such times vary with the CPU's load."""
DOWN_S, DOWN_GAPS = 60.0, 5.0
"""A link is down after so many seconds without a transfer, and so many of its usual gaps."""
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
    late_present: int = 0
    """Late transfers in the present interval."""
    late_shares: list[float] = field(default_factory=list[float])
    """The share of late transfers in each of the last `SLOW_INTERVALS` intervals, oldest first."""
    before_began_s: float = math.nan
    """The time at which the interval before the present one began."""
    before_bits: float = 0.0
    """Bits of the transfers in that interval."""
    medians: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Medians of the rate and the seconds in each earlier interval, oldest first."""


def carried(
    counts: LinkCounts, nbytes: int, seconds: float, *, allowed_s: float, now_s: float
) -> None:
    """Count one transfer that has ended at `now_s`.

    `allowed_s`: the seconds of the overlap; a transfer that takes longer is late.
    """
    counts.nbytes += nbytes
    counts.transfers += 1
    counts.seconds += seconds
    counts.late += (late := seconds > allowed_s)
    if not math.isnan(counts.last_s):
        gap_s = max(0.0, now_s - counts.last_s)
        old_s = gap_s if math.isnan(counts.gap_s) else counts.gap_s
        counts.gap_s = old_s + GAP_SMOOTHING * (gap_s - old_s)
    counts.last_s = now_s
    if not counts.present:
        counts.began_s = now_s
    elif now_s - counts.began_s >= INTERVAL_S:
        _end_interval(counts)
        counts.began_s = now_s
    counts.late_present += late
    counts.present.append((8 * nbytes / max(seconds, LEAST_S), seconds))


def _end_interval(counts: LinkCounts) -> None:
    """Keep the figures of the present interval, and begin another one without transfers."""
    rates, times = zip(*counts.present, strict=True)
    counts.medians.append((statistics.median(rates), statistics.median(times)))
    del counts.medians[:-KEPT]
    counts.late_shares.append(counts.late_present / len(counts.present))
    del counts.late_shares[:-SLOW_INTERVALS]
    counts.before_began_s, counts.before_bits = counts.began_s, _bits(counts.present)
    counts.present.clear()
    counts.late_present = 0


def _bits(transfers: Sequence[tuple[float, float]]) -> float:
    """Return the bits of transfers with these rates and seconds."""
    return sum(rate * max(seconds, LEAST_S) for rate, seconds in transfers)


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


def is_lagging(counts: LinkCounts) -> bool:
    """Return whether most transfers were late in each of the last intervals."""
    shares = counts.late_shares
    return len(shares) == SLOW_INTERVALS and all(share > LATE_SHARE for share in shares)


def utilisation(counts: LinkCounts, usual_bits_s: float | None, now_s: float) -> float | None:
    """Return the bit/s of the last two intervals over the usual rate, at most 1.

    The usual rate is that of one transfer, and transfers at the same time share the link, so the
    quotient can exceed 1. None: the usual rate is not known yet.
    """
    if not usual_bits_s:
        return None
    bits = counts.before_bits + _bits(counts.present)
    over_s = max(INTERVAL_S, now_s - counts.before_began_s)
    return min(1.0, bits / over_s / usual_bits_s)


def row_of(
    record: LinkCounts,
    link: str,
    direction: LinkDirection,
    now_s: float,
    *,
    queue_s: float,
    wanted: bool,
    served: bool,
) -> LinkStatus:
    """Return the status of one direction of a link.

    `wanted`: whether the link has islands. `served`: whether the syncer has a shard. A link that is
    down is neither slow nor lagging.
    """
    down = wanted and served and is_down(record, now_s)
    carries = wanted and not down
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
        utilisation=utilisation(record, usual, now_s),
        queue_s=queue_s,
        lagging=carries and is_lagging(record),
        slow=carries and is_slow(record),
        down=down,
    )
