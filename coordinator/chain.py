"""The public chain of a fragment: its last deltas, for learners that missed some of them.

Adding them one after the other gives the same bits as every other learner has. The shell chooses
the representation of a delta: bytes, or an integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Generic, TypeVar

from coordinator.protocol import Version

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kept(Generic[T]):
    """The delta from the public fragment `older` to the next version."""

    older: Version
    newer: Version
    difference: T


def worth_keeping(most: int, difference_bytes: int, whole_bytes: int) -> int:
    """Return how many deltas are worth keeping, at most `most`.

    A lagging learner already holds the newest delta. The older ones are worth keeping only if
    together they are smaller than the whole fragment.
    """
    kept = min(most, 1 + (whole_bytes - 1) // difference_bytes)
    return kept if kept > 1 else 0


def lengthened(chain: Sequence[Kept[T]], newest: Kept[T], most: int) -> tuple[Kept[T], ...]:
    """Return the chain with one more delta; only the last `most` are kept."""
    assert not chain or chain[-1].newer == newest.older, f"{newest.older} is not in the chain"
    return (*chain, newest)[-most:] if most else ()


def between(chain: Sequence[Kept[T]], older: Version, newer: Version) -> list[T] | None:
    """Return the deltas from one version to another, in order; None if some are not kept."""
    deltas: list[T] = []
    for kept in dropwhile(lambda each: each.older != older, chain):
        deltas.append(kept.difference)
        if kept.newer == newer:
            return deltas
    return None
