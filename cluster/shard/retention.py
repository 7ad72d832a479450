"""The retention of a shard: which public fragments it keeps, and which versions it stores."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.protocol import Anchor


@dataclass(frozen=True, slots=True)
class Retention:
    """The rules for how much a shard keeps."""

    anchor: Anchor
    """The anchor of contributions; with `CURRENT` they may count from earlier public fragments."""
    max_staleness: int
    """Versions that a base may be behind; the gate admits nothing older, so no more are kept."""
    every: int
    """Merges of a fragment from one stored version to the next (`durability.every`)."""

    @property
    def former(self) -> int:
        """Earlier public fragments that are kept of each fragment."""
        return self.max_staleness if self.anchor is Anchor.CURRENT else 0
