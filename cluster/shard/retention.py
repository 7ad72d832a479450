"""The retention of a shard: which public fragments it keeps, and which versions it stores."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.protocol import Anchor


@dataclass(frozen=True, slots=True)
class Retention:
    """How much a shard keeps. `every`: as `durability.every`.

    `anchor`: with `CURRENT` the public fragments of `max_staleness` versions before the present one
    are kept, since the gate admits nothing older; a contribution may still count from them.
    """

    anchor: Anchor
    max_staleness: int
    every: int

    @property
    def former(self) -> int:
        return self.max_staleness if self.anchor is Anchor.CURRENT else 0
