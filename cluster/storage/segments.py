"""The files of a tape, and places on it.

A generation begins with `tape-3.arrow`, and continues in files that are named by their first event,
such as `tape-3-000000041000.arrow`. Sealed files are never written again.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cluster.storage.depot import Depot

NAME = re.compile(r"tape-([0-9]+)(?:-([0-9]+))?\.arrow")
"""The names of the files, with generation and first event."""
SEGMENT_BYTES = 4 * 2**20
"""The size in bytes from which a snapshot seals a segment.

A day of 64 islands with steps of one second is then some hundred files.
"""


class Segment(NamedTuple):
    """A file of a tape; files sort in the order of the tape.

    The first file of a generation continues where the readable part of those before it ends.
    """

    generation: int
    """The generation that has written it."""
    first: int
    """The number of its first event; -1 for the file with which a generation begins."""

    @property
    def name(self) -> str:
        """The name in the depot."""
        if self.first < 0:
            return tape_name(self.generation)
        return f"tape-{self.generation}-{self.first:012}.arrow"


class TapePosition(NamedTuple):
    """A position between two events of a tape."""

    segment: Segment
    """The file."""
    offset: int
    """Bytes from the beginning of the file."""
    chain: int
    """The chain of checksums at this position."""


def tape_name(generation: int) -> str:
    """Return the name of a generation's first segment, which only one process can create."""
    return f"tape-{generation}.arrow"


def segment_named(name: str) -> Segment | None:
    """Return the segment with this file name; None if it is another file."""
    if (found := NAME.fullmatch(name)) is None:
        return None
    return Segment(int(found[1]), -1 if found[2] is None else int(found[2]))


def segments(depot: Depot) -> list[Segment]:
    """Return the existing segments, oldest first."""
    named = map(segment_named, depot.names())
    return sorted(each for each in named if each is not None)


def generations(depot: Depot) -> list[int]:
    """Return the generations that have written tape, oldest first."""
    return sorted({each.generation for each in segments(depot)})
