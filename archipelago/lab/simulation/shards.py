"""The shards of a simulated cluster: each is a `cluster.shard.shard` on integers."""

from __future__ import annotations

import random
from typing import TypeAlias

from archipelago.lab.checks.facts import Violation
from archipelago.lab.simulation.integer_shard import Saved, SimArithmetic, SimDisk, SimShard
from archipelago.lab.simulation.payloads import Parcel, SimDifference
from archipelago.lab.virtual.event_loop import VirtualLoop
from archipelago.lab.virtual.shards import ShardPlace, VirtualShards
from cluster.shard.retention import Retention
from cluster.shard.shard import Shard
from coordinator.protocol import Fragment, Publication, Version

SimShardPlace: TypeAlias = ShardPlace[Parcel, SimDifference, int, Saved]


class SimShards(VirtualShards[Parcel, SimDifference, int, Saved]):
    """All shards of a run, and their disk.

    `history` holds the value of each version that was ever public.
    """

    def __init__(
        self, loop: VirtualLoop, fragments: int, retention: Retention, rng: random.Random
    ) -> None:
        disk, count = SimDisk(), rng.randint(1, fragments)

        def made() -> SimShard:
            return Shard(lambda: (SimArithmetic(rng), disk), retention)

        shares = [map(Fragment, range(number, fragments, count)) for number in range(count)]
        super().__init__(loop, shares, made)
        self.history: dict[tuple[Fragment, Version], int] = {}
        for place in self.places:
            assert place.process is not None
            place.process.seed({p: Saved(Version(0, 0), 0) for p in place.fragments})
            self.history |= {(p, Version(0, 0)): 0 for p in place.fragments}

    def published(self, publication: Publication) -> None:
        """Record the value of a version that is public from here on."""
        ((version, value),) = self._there(publication.fragment).whole([publication.fragment])
        self.history[publication.fragment, version] = value

    def can_follow(self, known: tuple[Version, int], publication: Publication) -> bool:
        """Return whether a process has what a learner at this version has missed."""
        return publication.previous == known[0] or self.of(publication.fragment).process is not None

    def follow(
        self, known: tuple[Version, int], publication: Publication, payload: SimDifference
    ) -> tuple[Version, int]:
        """Return the public fragment that a learner with this state has after a publication.

        Errors: `Violation` if that is not the public value of its version, or if the shard is dead.
        """
        (version, value), p = known, publication.fragment
        found = (
            [] if publication.previous == version else self.missed(p, version, publication.previous)
        )
        if isinstance(found, list):
            newest = publication.version, value + sum(each.tokens for each in (*found, payload))
        else:
            newest = found
        if (public := self.history[p, newest[0]]) != newest[1]:
            text = f"f{p} {newest[0]} is {public}, a learner has {newest[1]}"
            raise Violation("the public chain", text)
        return newest
