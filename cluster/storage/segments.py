"""The files of a tape: a generation begins with `tape-3.arrow`, and goes on in files that are named
by their first event, `tape-3-000000041000.arrow`. Sealed ones are never written again.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cluster.storage.depot import Depot

NAME = re.compile(r"tape-([0-9]+)(?:-([0-9]+))?\.arrow")
SEGMENT_BYTES = 4 * 2**20
"""A snapshot seals a segment that is longer: a day of 64 islands with steps of a second is some
hundred files."""


class Segment(NamedTuple):
    """A file of a tape; they sort as they follow each other. `first`: its first event, -1 for the
    one that a generation begins with, which goes on where those before it end."""

    generation: int
    first: int

    @property
    def name(self) -> str:
        if self.first < 0:
            return tape_name(self.generation)
        return f"tape-{self.generation}-{self.first:012}.arrow"


class TapePosition(NamedTuple):
    """Between two events of a tape: `offset` bytes into a segment, where the chain of checksums is
    at `chain`."""

    segment: Segment
    offset: int
    chain: int


def tape_name(generation: int) -> str:
    """The first segment of a generation, which only one process can begin."""
    return f"tape-{generation}.arrow"


def segment_named(name: str) -> Segment | None:
    """None if it is another file."""
    if (found := NAME.fullmatch(name)) is None:
        return None
    return Segment(int(found[1]), -1 if found[2] is None else int(found[2]))


def segments(depot: Depot) -> list[Segment]:
    """Those that there are, in order."""
    named = map(segment_named, depot.names())
    return sorted(each for each in named if each is not None)


def generations(depot: Depot) -> list[int]:
    """Those of which there is tape, in order."""
    return sorted({each.generation for each in segments(depot)})
