"""A small typed view of the syncer's state, from which the fleet decides; not for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cluster.status import IslandState
from coordinator.protocol import Island
from coordinator.state import Phase


@dataclass(frozen=True, slots=True)
class IslandView:
    """One island in the syncer's state."""

    learner: IslandState
    """The state of its learner."""
    incarnation: int = 0
    """The incarnation of its present or last life; 0 before the first."""
    contributions: int = 0
    """Admitted contributions over all lives."""


@dataclass(frozen=True, slots=True)
class View:
    """The state of the run, as the fleet sees it."""

    t: int
    """The syncer's clock."""
    phase: Phase
    islands: Mapping[Island, IslandView] = field(default_factory=dict[Island, IslandView])
    """Every island in the syncer's state."""

    @property
    def live(self) -> frozenset[Island]:
        """The islands whose learner is live."""
        return frozenset(i for i, each in self.islands.items() if each.learner == "live")


class ProcessStarts(NamedTuple):
    """The processes of islands that the fleet has seen begin."""

    age_s: float
    """The age in seconds of this knowledge: no process has begun since that is not in it."""
    newest: Mapping[Island, tuple[int, float]]
    """The number of the newest start of each island, and its age in seconds."""
