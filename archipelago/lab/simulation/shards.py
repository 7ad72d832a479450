"""The place where the simulated shards live and die: each a `cluster.shard.shard` on integers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from archipelago.lab.checks.facts import Violation
from archipelago.lab.simulation.event_loop import VirtualLoop
from archipelago.lab.simulation.integer_shard import Saved, SimArithmetic, SimDisk, SimShard
from archipelago.lab.simulation.payloads import SimDifference
from cluster.shard.arrivals import Arrivals
from cluster.shard.fates import Fates
from cluster.shard.retention import Retention
from cluster.shard.shard import Shard
from cluster.syncer.collect import Gatherer
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Publication,
    Reference,
    Version,
)


@dataclass(slots=True)
class ShardPlace:
    """One shard's fragments and its process."""

    fragments: tuple[Fragment, ...]
    process: SimShard | None = None
    """The shard's process; None while it is dead."""
    fates: Fates = field(default_factory=Fates)
    """The process's record of what happened to contributions."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    """The process's record of which learners publications have reached."""
    gatherer: Gatherer = field(default_factory=Gatherer)
    """The process's requests to learners."""
    deaths: int = 0
    """The number of deaths of its process in this generation."""
    died: int = 0
    """The number of deaths of its process in the whole run."""


class SimShards:
    """All shards of a run, their disk, and the syncer's record of merged contributions.

    `history` holds the value of each version that was ever public.
    """

    def __init__(
        self, loop: VirtualLoop, fragments: int, retention: Retention, rng: random.Random
    ) -> None:
        self._loop, self._retention, self._rng, self._free_s = loop, retention, rng, 0.0
        self._disk = SimDisk()
        count = rng.randint(1, fragments)
        fragment_ranges = [range(number, fragments, count) for number in range(count)]
        self.places = [ShardPlace(tuple(map(Fragment, each))) for each in fragment_ranges]
        self._of = {p: place for place in self.places for p in place.fragments}
        self._merged = Fates()  # the syncer's record, for a shard that comes back
        self.history: dict[tuple[Fragment, Version], int] = {}
        for place in self.places:
            place.process = self._begun()
            place.process.seed({p: Saved(Version(0, 0), 0) for p in place.fragments})
            self.history |= {(p, Version(0, 0)): 0 for p in place.fragments}

    def _begun(self) -> SimShard:
        return Shard(lambda: (SimArithmetic(self._rng), self._disk), self._retention)

    def of(self, p: Fragment) -> ShardPlace:
        """Return the place of a fragment's shard."""
        return self._of[p]

    @property
    def alive(self) -> Iterator[SimShard]:
        """The processes of the live shards."""
        return (place.process for place in self.places if place.process is not None)

    @property
    def all_there(self) -> bool:
        """Whether all shards are alive."""
        return all(place.process is not None for place in self.places)

    async def work(self, takes_s: float) -> None:
        """Wait until earlier work is done, and then for `takes_s`."""
        self._free_s = max(self._free_s, self._loop.now_s) + takes_s
        await self._loop.pause(self._free_s - self._loop.now_s)

    # --- deaths -----------------------------------------------------------------------------------

    def die(self, place: ShardPlace) -> None:
        """Kill a shard's process; all that was handed in and not stored is lost."""
        place.process, place.arrivals = None, Arrivals()
        place.gatherer.forget()
        place.deaths += 1
        place.died += 1

    def come_back(
        self, place: ShardPlace, targets: Mapping[Fragment, Version], generation: int
    ) -> bool:
        """Start a process from the stored versions, and return whether these are the targets."""
        place.process, place.fates = self._begun(), Fates()
        found = place.process.recover(targets, generation)
        place.fates.died(place.deaths)
        place.fates.published(self._merged.merged(targets.keys()))
        return found == targets

    def recover(
        self, versions: Sequence[Version], generation: int, *, dies: bool
    ) -> tuple[Version, ...]:
        """Return to these published versions, or to the newest stored ones before them.

        With `dies` every process restarts and has only what is stored. Returns the recovered
        versions.
        """
        found: dict[Fragment, Version] = {}
        self._merged = Fates()
        for place in self.places:
            place.gatherer.forget()
            if dies or place.process is None:
                place.process, place.fates, place.died = self._begun(), Fates(), place.died + 1
                place.arrivals = Arrivals()
            targets = {p: versions[p] for p in place.fragments}
            found |= place.process.recover(targets, generation)
            place.deaths = 0
            place.fates.died(0)
        return tuple(found[p] for p in sorted(found))

    def close(self) -> None:
        """Cancel all requests to learners."""
        for place in self.places:
            place.gatherer.forget()

    # --- contents ---------------------------------------------------------------------------------

    def published(self, merged: Iterable[ContributionId]) -> None:
        """Record the contributions of a version that the syncer ordered to be published."""
        self._merged.published(merged)

    def made_public(self, publication: Publication) -> None:
        """Record that a version is public from here on."""
        ((version, value),) = self._there(publication.fragment).whole([publication.fragment])
        self.history[publication.fragment, version] = value

    def whole(self) -> list[tuple[Version, int]]:
        """Return all public fragments; every shard must be alive."""
        return [self._there(p).whole([p])[0] for p in sorted(self._of)]

    def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[SimDifference] | tuple[Version, int]:
        """Return the differences from one version to another, or the whole fragment."""
        return self._there(p).missed(p, older, newer)

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

    @property
    def held(self) -> set[Reference]:
        """References of all contributions that are neither merged nor dropped."""
        return {reference for process in self.alive for reference in process.inbox}

    def _there(self, p: Fragment) -> SimShard:
        if (process := self.of(p).process) is None:
            raise Violation("only live shards are called", f"the shard of fragment {p} is dead")
        return process
