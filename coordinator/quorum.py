"""The decision whether a round may close, always with its reason."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from coordinator.protocol import Island


@dataclass(frozen=True, slots=True)
class Close:
    """The verdict to merge what has arrived."""

    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The verdict to wait for an arrival, or until a deadline."""

    until_s: float
    """Time at which the round is judged again; infinite if only an arrival can help."""
    why: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """The verdict to end the round and keep its contributions: the quorum will not be reached."""

    why: str


RoundVerdict = Close | Wait | Abandon


def judge(
    *,
    min_quorum: int,
    arrived: AbstractSet[Island],
    expected: AbstractSet[Island],
    stopping: bool,
    deadline_s: float,
    now_s: float,
) -> RoundVerdict:
    """Decide whether the round closes at `now_s`.

    `arrived`: islands whose contribution the shard holds, past the gate; an island that delivered
    and then died still counts, because its work is done. `expected`: live islands that were asked
    and have not answered. `deadline_s`: the end of the grace window. Without a quorum it is
    infinite before the run ends; when the run ends it is the time at which the round is
    abandoned.
    """
    if len(arrived) < min_quorum:
        short = f"quorum {len(arrived)}/{min_quorum}"
        if stopping and not expected:
            return Abandon(f"{short} and nobody left to wait for")
        if stopping and now_s >= deadline_s:
            return Abandon(f"{short}, the end has waited for {', '.join(sorted(expected))}")
        return Wait(deadline_s if stopping else math.inf, short)
    if not expected:
        return Close(f"all {len(arrived)} delivered")
    if now_s >= deadline_s:
        return Close(f"grace over without {', '.join(sorted(expected))}")
    return Wait(deadline_s, f"grace for {', '.join(sorted(expected))}")
