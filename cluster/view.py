"""What the fleet decides from: a small typed view of the syncer's state, and nothing for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.status import IslandState
from coordinator.protocol import Island
from coordinator.state import Phase


@dataclass(frozen=True, slots=True)
class IslandView:
    """One island as the syncer knows it: how its learner stands, which life it is in, and how many
    contributions of all its lives were admitted."""

    learner: IslandState
    incarnation: int = 0
    contributions: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """The syncer's clock t, the phase of the run, and every island that the syncer knows."""

    t: int
    phase: Phase
    islands: Mapping[Island, IslandView] = field(default_factory=dict[Island, IslandView])

    @property
    def live(self) -> frozenset[Island]:
        """The islands whose learner is live."""
        return frozenset(i for i, each in self.islands.items() if each.learner == "live")
