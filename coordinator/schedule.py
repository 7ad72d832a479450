"""Which fragment is due at which syncer step."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.protocol import Fragment


@dataclass(frozen=True, slots=True)
class Schedule:
    """Fragment p of P is due when t passes n*H + floor(p*H/P), for every n >= 0, save t = 0.

    H (`every`) need not be a multiple of P: the due points are spread exactly, each fragment once
    in H steps. P > H is refused at the door, since two fragments would share a step.
    """

    every: int
    fragments: int

    def phase(self, fragment: Fragment) -> int:
        return fragment * self.every // self.fragments

    def passed(self, fragment: Fragment, *, t: int) -> int:
        """How many due points of the fragment lie in (0, t]."""
        phase = self.phase(fragment)
        upto = (t - phase) // self.every + 1 if t >= phase else 0
        return upto - 1 if phase == 0 and upto > 0 else upto

    def due(self, *, after: int, upto: int) -> tuple[Fragment, ...]:
        """The fragments with a due point in (after, upto], each once, in order of p."""
        return tuple(
            fragment
            for fragment in map(Fragment, range(self.fragments))
            if self.passed(fragment, t=upto) > self.passed(fragment, t=after)
        )
