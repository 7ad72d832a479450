"""The place where the shards of a run in virtual time live and die, each with its real code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

from archipelago.lab.checks.facts import Violation
from archipelago.lab.virtual.event_loop import VirtualLoop
from cluster.shard.arithmetic import D, P, S, W
from cluster.shard.arrivals import Arrivals
from cluster.shard.fates import Fates
from cluster.shard.shard import Shard
from cluster.syncer.collect import Gatherer
from coordinator.protocol import ContributionId, Fragment, Publication, Reference, Version


@dataclass(slots=True)
class ShardPlace(Generic[P, D, W, S]):
    """One shard's fragments and its process."""

    fragments: tuple[Fragment, ...]
    process: Shard[P, D, W, S] | None = None
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


class VirtualShards(Generic[P, D, W, S]):
    """All shards of a run, and the syncer's record of merged contributions."""

    def __init__(
        self,
        loop: VirtualLoop,
        shares: Iterable[Iterable[Fragment]],
        made: Callable[[], Shard[P, D, W, S]],
    ) -> None:
        """Create a shard for each share of the fragments; `made` returns one without a model."""
        self._loop, self._made, self._free_s = loop, made, 0.0
        self.places = [ShardPlace(tuple(share), made()) for share in shares]
        self._of = {p: place for place in self.places for p in place.fragments}
        self._merged = Fates()  # the syncer's record, for a shard that comes back

    def of(self, p: Fragment) -> ShardPlace[P, D, W, S]:
        """Return the place of a fragment's shard."""
        return self._of[p]

    @property
    def alive(self) -> Iterator[Shard[P, D, W, S]]:
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

    def die(self, place: ShardPlace[P, D, W, S]) -> None:
        """Kill a shard's process; all that was handed in and not stored is lost."""
        place.process, place.arrivals = None, Arrivals()
        place.gatherer.forget()
        place.deaths += 1
        place.died += 1

    def come_back(
        self, place: ShardPlace[P, D, W, S], targets: Mapping[Fragment, Version], generation: int
    ) -> bool:
        """Start a process from the stored versions, and return whether these are the targets."""
        place.process, place.fates = self._made(), Fates()
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
                place.process, place.fates, place.died = self._made(), Fates(), place.died + 1
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

    def ordered(self, merged: Iterable[ContributionId]) -> None:
        """Record the contributions of a version that the syncer ordered to be published."""
        self._merged.published(merged)

    def published(self, publication: Publication) -> None:
        """Record that a version is public from here on; by default nothing is recorded."""

    def whole(self) -> list[tuple[Version, W]]:
        """Return all public fragments; every shard must be alive."""
        return [self._there(p).whole([p])[0] for p in sorted(self._of)]

    def shared(self) -> list[D | None]:
        """Return the mean of first moments of each fragment; every shard must be alive."""
        return [self._there(p).shared([p])[0] for p in sorted(self._of)]

    def missed(self, p: Fragment, older: Version, newer: Version) -> list[D] | tuple[Version, W]:
        """Return the differences from one version to another, or the whole fragment."""
        return self._there(p).missed(p, older, newer)

    @property
    def held(self) -> set[Reference]:
        """References of all contributions that are neither merged nor dropped."""
        return {reference for process in self.alive for reference in process.inbox}

    def _there(self, p: Fragment) -> Shard[P, D, W, S]:
        if (process := self.of(p).process) is None:
            raise Violation("only live shards are called", f"the shard of fragment {p} is dead")
        return process
