"""The format of the files that a run leaves in its depot, and the errors of a file."""

from __future__ import annotations

from coordinator.errors import ArchipelagoError

FORMAT, READABLE = "8", ("3", "4", "5", "6", "7", "8")
"""The format of tape, snapshots and fragments that is written, and those that can be read.

- 4 adds the shard's answer to a merge (norm, cosines), unsound merges, and the parts and kind of a
  contribution.
- 5 has a tape in segments.
- 6 adds the learners that publications have reached.
- 7 adds the direction of a merged delta to the outer momentum, and the outer learning rate.
- 8 adds the moments that a life took from a donor.

Any other number is refused.
"""


class Damaged(ArchipelagoError):
    """A file of the run is not as it was written: truncated, altered, or of another version."""


class Foreign(Damaged):
    """A file of the run is intact, but of another format, layout or version."""
