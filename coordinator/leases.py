"""Who reads which piece of the shuffled corpus.

The sequence of pieces is endless (one epoch's permutation after another), so a fresh lease is
always to be had; what a lost learner had not yet contributed goes back and is handed out first.
Each region has a sequence of its own, and what goes back is read again in the same region only
(docs/decisions/leases-and-regions.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.frozen import replace
from coordinator.protocol import Lease, Region


@dataclass(frozen=True, slots=True)
class Pool:
    """One region's: the number of the first lease never granted; those given back, in order."""

    fresh: int = 0
    returned: tuple[Lease, ...] = ()


Pools = Mapping[Region | None, Pool]
"""Of every region that a learner came from; None is that of islands without one."""


def pool_of(pools: Pools, region: Region | None) -> Pool:
    return pools.get(region, Pool())


def grant(pool: Pool) -> tuple[Pool, Lease]:
    """Hand out what was given back first, then fresh pieces in order."""
    if pool.returned:
        return replace(pool, returned=pool.returned[1:]), pool.returned[0]
    return replace(pool, fresh=pool.fresh + 1), Lease(pool.fresh)


def give_back(pool: Pool, held: Sequence[Lease], covered: Lease | None, windows: int) -> Pool:
    """Return what is unread of `held`, in reading order; `covered` = read up to here for good.

    Leases before the covered one are used up; `windows` is the length of a lease.
    """
    numbers = [lease.number for lease in held]
    if covered is not None and covered.number in numbers:
        rest = held[numbers.index(covered.number) + 1 :]
        unread = ((covered,) if covered.start < windows else ()) + tuple(rest)
    else:
        unread = tuple(held)
    returned = tuple(sorted((*pool.returned, *unread), key=lambda lease: lease.number))
    return replace(pool, returned=returned)


def further(held: Sequence[Lease], covered: Lease | None, read: Lease) -> Lease | None:
    """The later of two cursors: contributions may arrive in another order than they were made."""
    numbers = [lease.number for lease in held]
    if read.number not in numbers:
        return covered
    if covered is None or covered.number not in numbers:
        return read
    return max(covered, read, key=lambda lease: (numbers.index(lease.number), lease.start))


def consumed(held: Sequence[Lease], passed: int, read: Lease, windows: int) -> int | None:
    """Return how many windows of its leases a life has read at this cursor; None if the lease is
    not among those `held`. `passed`: windows of the leases before them; `windows`: of a whole one.
    """
    before = passed
    for lease in held:
        if lease.number == read.number:
            return before + read.start - lease.start
        before += windows - lease.start
    return None


def windows_in(held: Sequence[Lease], windows: int) -> int:
    """Return how many windows these leases hold, `windows` being those of a whole one."""
    return sum(windows - lease.start for lease in held)


def keep_unread(held: Sequence[Lease], covered: Lease | None) -> tuple[Lease, ...]:
    """Forget leases that are used up: those before the covered one."""
    numbers = [lease.number for lease in held]
    first = numbers.index(covered.number) if covered and covered.number in numbers else 0
    return tuple(held[first:])
