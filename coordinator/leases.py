"""The leases: which learner reads which piece of the shuffled corpus.

The sequence of pieces is endless (one epoch's permutation after another), so there is always a
fresh lease. Pieces that a lost learner had not yet contributed go back and are granted first. Each
region has a sequence of its own, and what goes back is read again in the same region only
(docs/explanation/decisions/leases-and-regions.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.frozen import replace
from coordinator.protocol import Lease, Region


@dataclass(frozen=True, slots=True)
class Pool:
    """The leases of one region."""

    fresh: int = 0
    """Number of the first lease that was never granted."""
    returned: tuple[Lease, ...] = ()
    """Leases that were given back, in order."""


Pools = Mapping[Region | None, Pool]
"""The pool of every region that a learner came from; None is the pool of islands without one."""


def pool_of(pools: Pools, region: Region | None) -> Pool:
    """Return the pool of a region; an unused one if no learner came from it yet."""
    return pools.get(region, Pool())


def grant(pool: Pool) -> tuple[Pool, Lease]:
    """Grant the first lease that was given back, else the next fresh one."""
    if pool.returned:
        return replace(pool, returned=pool.returned[1:]), pool.returned[0]
    return replace(pool, fresh=pool.fresh + 1), Lease(pool.fresh)


def give_back(pool: Pool, held: Sequence[Lease], covered: Lease | None, windows: int) -> Pool:
    """Return the pool with the unread leases of `held`, which are in reading order.

    `covered`: the cursor up to which the data is used for good; leases before it are used up.
    `windows`: windows in a whole lease.
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
    """Return the later of two cursors, since contributions may arrive out of order."""
    numbers = [lease.number for lease in held]
    if read.number not in numbers:
        return covered
    if covered is None or covered.number not in numbers:
        return read
    return max(covered, read, key=lambda lease: (numbers.index(lease.number), lease.start))


def consumed(held: Sequence[Lease], passed: int, read: Lease, windows: int) -> int | None:
    """Return the windows of its leases that a life has read at this cursor.

    It is None if the lease is not among those `held`. `passed`: windows of the leases before them.
    `windows`: windows in a whole lease.
    """
    before = passed
    for lease in held:
        if lease.number == read.number:
            return before + read.start - lease.start
        before += windows - lease.start
    return None


def windows_in(held: Sequence[Lease], windows: int) -> int:
    """Return the number of windows in these leases; `windows`: windows in a whole lease."""
    return sum(windows - lease.start for lease in held)


def keep_unread(held: Sequence[Lease], covered: Lease | None) -> tuple[Lease, ...]:
    """Return the leases without the used ones, which are those before the covered one."""
    numbers = [lease.number for lease in held]
    first = numbers.index(covered.number) if covered and covered.number in numbers else 0
    return tuple(held[first:])
