"""The format of what a run leaves in its depot, and what is wrong with a file of it."""

from __future__ import annotations

from coordinator.errors import ArchipelagoError

FORMAT, READABLE = "7", ("3", "4", "5", "6", "7")
"""Of tape, snapshots and fragments: what is written, and what can be read. 4 has what a shard says
of a merge (norm, cosines), of unsound ones, and parts and kind of a contribution; 5 has a tape in
segments; 6 has whom publications have reached; 7 has where a merged delta points beside the outer
momentum, and the outer rate. Another number is refused."""


class Damaged(ArchipelagoError):
    """A file of the run is not what was written: truncated, altered, or of another version."""


class Foreign(Damaged):
    """A file of the run is whole, but of another format, layout or version."""
