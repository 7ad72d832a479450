"""The islands' places, and their links to the rest: messages and bytes in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from archipelago.lab.training.compiled_parts import CompiledParts
from archipelago.lab.training.lease_source import GivenLeases, Reading
from archipelago.lab.training.process import TrainingProcess
from archipelago.lab.training.timing import Timing
from archipelago.lab.virtual.network import VirtualNetwork
from archipelago.lab.virtual.shards import VirtualShards
from archipelago.lab.virtual.site import IslandPlace, VirtualSite
from cluster.config.rule import group_of
from cluster.config.schema import Config
from cluster.names import CALL_TIMEOUT_S
from cluster.storage.fragments import Arrays
from coordinator.codec import Sent, Wire, decode, split
from coordinator.fragments import Flat
from coordinator.protocol import Fragment, Island, Life, Version
from islands.exchange import Missed
from islands.task import StreamLike


@dataclass(slots=True)
class Direction:
    """One direction of an island's own link; messages queue while it is busy."""

    timing: Timing
    free_s: float = 0.0

    def takes_s(self, now_s: float, size_bytes: int) -> float:
        """Return the seconds until `size_bytes` have arrived."""
        self.free_s = max(self.free_s, now_s) + self.timing.passes_s(size_bytes)
        return self.free_s - now_s + self.timing.latency_s


@dataclass(slots=True, kw_only=True)
class LinkedPlace(IslandPlace[TrainingProcess]):
    """One island's place, with a link of its own bandwidth in each direction."""

    up: Direction
    down: Direction
    away_until_s: float | None = None
    """The virtual time at which machines that were taken away are back; None: for good."""


class TrainingNetwork(VirtualNetwork[TrainingProcess, LinkedPlace]):
    """The network of a run with real arrays: it loses messages only while it is cut."""

    timeout_s, resends = CALL_TIMEOUT_S, True

    def __init__(
        self,
        site: VirtualSite[LinkedPlace],
        config: Config,
        kit: CompiledParts,
        timing: Timing,
        shards: VirtualShards[Sent, Sent, Flat, Arrays],
        reading: Reading | None,
    ) -> None:
        """Connect the places of a site; `reading` replaces the leases that the rules grant."""
        super().__init__(site)
        self.timing, self.shards, self._config, self._kit = timing, shards, config, kit
        self._given = None if reading is None else GivenLeases(reading)

    # --- processes --------------------------------------------------------------------------------

    def process_at(self, place: LinkedPlace, seed: str) -> TrainingProcess:
        """Return a new process for a place."""
        return TrainingProcess(
            self._config, place.island, self._kit, self.timing, self.loop, self, seed
        )

    def ended(self, process: TrainingProcess, life: Life) -> None:
        """Notify the watchers of a life that it is over."""
        self.notify(life, self.timing.latency_s, "its learner has ended this life")

    def left(self, process: TrainingProcess) -> None:
        """Retire a drained island; a preempted one comes back later."""
        place = self.places[process.island]
        back_s, place.away_until_s = place.away_until_s, None
        if back_s is None:
            place.retired = True
        else:
            self.loop.at(max(back_s, self.loop.now_s) + self.timing.back_s, self.start, place)

    def preempt(self, place: LinkedPlace, for_s: float) -> None:
        """Have an island that leaves return `for_s` from now, plus the time of a start."""
        place.away_until_s = self.loop.now_s + for_s

    # --- messages ---------------------------------------------------------------------------------

    def delay_s(self, place: LinkedPlace) -> float:
        """Return the latency, which is the same for all messages."""
        return self.timing.latency_s

    def lost(self, place: LinkedPlace, cut_s: float) -> bool:
        """Return whether a message is lost: all are until the end of the cut, and none later."""
        return self.loop.now_s < cut_s

    # --- arrays -----------------------------------------------------------------------------------

    def whole(self, process: TrainingProcess) -> None:
        """Fetch all public fragments, as they are when they arrive."""
        size_bytes = sum(map(Wire.F32.bytes_of, self._kit.layout.sizes))
        takes_s = self.places[process.island].down.takes_s(self.loop.now_s, size_bytes)
        ready_s = self.loop.now_s + takes_s + self.timing.latency_s
        self.loop.at(ready_s, process.reached, self._give, process)

    def _give(self, process: TrainingProcess) -> None:
        process.start(self.shards.whole())

    def missed(self, p: Fragment, older: Version, newer: Version) -> Missed:
        """Return the differences from one version to another, or the whole fragment."""
        return self.shards.missed(p, older, newer)

    def moments(self, donor: Life) -> list[NDArray[Any]] | None:
        """Return a donor's moments; None if its process is in another life."""
        process = self.places[donor.island].process
        if process is None or process.life != donor:
            return None
        return process.kit.inner.moments(process.replica.state)

    def shared(self) -> dict[Fragment, Flat]:
        """Return the published means of first moments, by fragment."""
        found, sizes = enumerate(self.shards.shared()), self._kit.layout.sizes
        return {Fragment(p): decode(split(m)[0], sizes[p]) for p, m in found if m is not None}

    def stream(self, island: Island) -> StreamLike:
        """Return an island's data stream, which reads the leases of the tape if there is one."""
        group = group_of(self._config, island)
        stream = self._kit.tasks[group.group].stream(group.batch_size)
        return stream if self._given is None else self._given.stream(island, stream)
