"""The public chain of a fragment: its last differences, for whoever missed some of them.

To add them one after the other is what everybody else did, so that it gives the same bits. What
stands for a difference is the shell's: bytes, or an integer.
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
    """What leads from the public fragment `older` to the version after it."""

    older: Version
    newer: Version
    difference: T


def worth_keeping(most: int, difference_bytes: int, whole_bytes: int) -> int:
    """How many differences, `most` at most, are of use.

    A lagging learner already holds the newest difference; the older ones are worth keeping only if
    together they are smaller than the whole fragment.
    """
    kept = min(most, 1 + (whole_bytes - 1) // difference_bytes)
    return kept if kept > 1 else 0


def lengthened(chain: Sequence[Kept[T]], newest: Kept[T], most: int) -> tuple[Kept[T], ...]:
    """The chain with one more, of which `most` are kept."""
    assert not chain or chain[-1].newer == newest.older, f"{newest.older} is not in the chain"
    return (*chain, newest)[-most:] if most else ()


def between(chain: Sequence[Kept[T]], older: Version, newer: Version) -> list[T] | None:
    """What leads from one version to another, in order; None if not all of it is kept."""
    found: list[T] = []
    for kept in dropwhile(lambda each: each.older != older, chain):
        found.append(kept.difference)
        if kept.newer == newer:
            return found
    return None
