"""The events of a run that has ended, read from its tape, with their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cluster.config.load import load
from cluster.storage.depot import Depot
from cluster.storage.layout import load_layout
from cluster.storage.open_depot import depot_of
from cluster.storage.playback import TapeRow, read_tape
from cluster.syncer.journal import read_notes
from coordinator.protocol import Arrived, Fragment, Island, Merged


def _depot(run_dir: Path) -> Depot:
    """Open the durable store of a run."""
    return depot_of(load(run_dir / "config.toml"), run_dir)


def rows_of(run_dir: Path) -> list[TapeRow]:
    """Return all rows of a run's tape, oldest first."""
    depot = _depot(run_dir)
    return read_tape(depot, load_layout(depot).fingerprint).events


@dataclass(frozen=True, slots=True)
class Story:
    """The times of what happened in a run, in seconds of its own clock."""

    merges: list[float]
    """The time of each merge."""
    arrivals: dict[Island, list[tuple[float, int]]]
    """The time of each contribution of an island, with the incarnation."""
    faults: list[tuple[float, str]]
    """The time and the victim of each injected fault."""
    merges_of: dict[Fragment, list[float]]
    """The time of each merge of a fragment."""
    held: list[tuple[float, set[str]]]
    """The times at which it was noted which islands hold devices, and those islands."""

    @staticmethod
    def of(run_dir: Path) -> Story:
        """Read the story of a run from its directory."""
        rows = rows_of(run_dir)
        arrivals: dict[Island, list[tuple[float, int]]] = {}
        merges_of: dict[Fragment, list[float]] = {}
        for row in rows:
            if isinstance(row.event, Merged):
                merges_of.setdefault(row.event.fragment, []).append(row.now_s)
            if isinstance(row.event, Arrived):
                life = row.event.contribution.id.life
                arrivals.setdefault(life.island, []).append((row.now_s, life.incarnation))
        notes = read_notes(_depot(run_dir))
        return Story(
            [row.now_s for row in rows if isinstance(row.event, Merged)],
            arrivals,
            [(note.now_s, note.what[0]) for note in notes if note.kind == "fault"],
            merges_of,
            [(note.now_s, {*note.what[0]}) for note in notes if note.kind == "held"],
        )

    def gap_s(self, from_s: float, to_s: float) -> float:
        """Return the longest time between two merges that overlaps with this interval."""
        return _longest_s(self.merges, from_s, to_s)

    def pauses_s(self, from_s: float, to_s: float) -> dict[Fragment, float]:
        """Return the longest time between two merges of each fragment, as in `gap_s`."""
        return {p: _longest_s(times, from_s, to_s) for p, times in self.merges_of.items()}

    def next_merge_s(self, after_s: float) -> float:
        """Return the time of the first merge after this time."""
        return next(at_s for at_s in self.merges if at_s > after_s)

    def back_s(self, island: Island, killed_s: float) -> float:
        """Return the time at which the island contributed again, in a new life."""
        old_life = max(life for s, life in self.arrivals[island] if s <= killed_s)
        return next(s for s, life in self.arrivals[island] if life > old_life)

    def cold_starts_s(self) -> list[float]:
        """Return for each island the seconds from its devices to its first contribution."""
        first_joins: dict[str, float] = {}
        for at_s, islands in self.held:
            for island in islands:
                first_joins.setdefault(island, at_s)
        return [self.arrivals[Island(i)][0][0] - at_s for i, at_s in first_joins.items()]


def _longest_s(times_s: Sequence[float], from_s: float, to_s: float) -> float:
    """Return the longest time between two neighbours that overlaps with an interval."""
    return max(b - a for a, b in pairwise(times_s) if b > from_s and a < to_s)
