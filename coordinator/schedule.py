"""The schedule of due points: which fragment is due at which syncer step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from coordinator.protocol import Fragment


class Before(NamedTuple):
    """An earlier stretch of the schedule, with its own H."""

    upto: int
    """The last syncer step of the stretch."""
    every: int
    """H in the stretch, in syncer steps."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The due points of all fragments: p is due when t passes n*H + floor(p*H/P), n >= 0, t > 0.

    H (`every`) need not be a multiple of P: the due points are spread exactly, each fragment once
    in H steps. The configuration refuses P > H, since two fragments would share a step. If H
    changes during the run, `before` has the earlier stretches in order. A due point in a stretch
    (a, b] is one of that stretch's H, as if that H had been valid from the beginning.
    """

    every: int
    fragments: int
    before: tuple[Before, ...] = ()

    def passed(self, fragment: Fragment, *, t: int) -> int:
        """Return how many due points of the fragment lie in (0, t]."""
        count, start = 0, 0
        for upto, every in self.before:
            stop = min(t, upto)
            if stop > start:
                count += self._upto(every, fragment, stop) - self._upto(every, fragment, start)
            start = upto
        if t > start:
            count += self._upto(self.every, fragment, t)
            count -= self._upto(self.every, fragment, start)
        return count

    def _upto(self, every: int, fragment: Fragment, t: int) -> int:
        """Return how many due points lie in [0, t] if H never changes."""
        phase = fragment * every // self.fragments
        return (t - phase) // every + 1 if t >= phase else 0

    @property
    def longest(self) -> int:
        """The largest H of the schedule, in syncer steps."""
        return max([self.every, *(every for _, every in self.before)])

    @property
    def least(self) -> int:
        """The smallest distance between successive due points of a fragment, in syncer steps."""
        gaps = [self.every, *(every for _, every in self.before)]
        longest = self.longest
        for upto, _ in self.before:
            for p in map(Fragment, range(self.fragments)):
                points = self._points(p, upto - longest, upto + longest)
                gaps += [b - a for a, b in pairwise(points)]
        return min(gaps)

    def _points(self, fragment: Fragment, after: int, upto: int) -> Iterator[int]:
        for t in range(max(0, after) + 1, upto + 1):
            if self.passed(fragment, t=t) > self.passed(fragment, t=t - 1):
                yield t

    def due(self, *, after: int, upto: int) -> tuple[Fragment, ...]:
        """Return the fragments with a due point in (after, upto], each once, in order of p."""
        return tuple(
            fragment
            for fragment in map(Fragment, range(self.fragments))
            if self.passed(fragment, t=upto) > self.passed(fragment, t=after)
        )
