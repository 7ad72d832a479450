"""Small default values for the tests of the rules; every field can be overridden."""

from __future__ import annotations

from coordinator.direction_gate import Watch
from coordinator.protocol import (
    Contribution,
    ContributionId,
    Fragment,
    Incarnation,
    Island,
    Lease,
    Life,
    Progress,
    Reference,
    Version,
)
from coordinator.schedule import Schedule
from coordinator.state import Rule

LAYOUT = "layout"
V0 = Version(0, 0)


def life(island: str = "a", incarnation: int = 1) -> Life:
    return Life(Island(island), Incarnation(incarnation))


def rule(
    *,
    every: int = 4,
    fragments: int = 1,
    steps: int = 1000,
    quorum: int = 1,
    grace_s: float | None = None,
    overlap: int = 2,
    max_staleness: int = 8,
    lease_windows: int = 1000,
    overlap_follows: bool = False,
) -> Rule:
    return Rule(
        Schedule(every, fragments),
        LAYOUT,
        steps,
        min_quorum=quorum,
        grace_s=grace_s,
        overlap=overlap,
        max_staleness=max_staleness,
        lease_windows=lease_windows,
        watch=Watch.QUARANTINE,
        overlap_follows=overlap_follows,
    )


def contribution(
    who: Life | None = None,
    fragment: int = 0,
    span: tuple[int, int] = (0, 4),
    *,
    tokens: int | None = None,
    base: Version = V0,
    since_step: int | None = None,
    norm: float = 1.0,
    fingerprint: str = LAYOUT,
    progress: Progress | None = None,
    reference: str = "r",
) -> Contribution:
    """Return a contribution of 100 tokens a step, unless `tokens` is given.

    The lease is the first one that this life reads if no lease was returned before it joined; each
    step reads one window.
    """
    start, stop = span
    who = who or life()
    lease = Lease(2 * (who.incarnation - 1), stop)
    return Contribution(
        id=ContributionId(who, Fragment(fragment), start, stop),
        base=base,
        since_step=start if since_step is None else since_step,
        tokens=100 * (stop - start) if tokens is None else tokens,
        norm=norm,
        bytes=64,
        fingerprint=fingerprint,
        progress=progress or Progress(stop, 100 * stop, lease),
        reference=Reference(reference),
    )
