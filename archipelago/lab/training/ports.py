"""The syncer's ports in virtual time: a real shard, and learners with real arrays."""

from __future__ import annotations

from typing import Any

from archipelago.lab.training.network import LinkedPlace, TrainingNetwork
from archipelago.lab.training.process import TrainingProcess
from archipelago.lab.virtual.ports import VirtualPorts
from archipelago.lab.virtual.shards import VirtualShards
from cluster.failures import Answered
from coordinator.codec import Sent
from coordinator.protocol import Discard, HandIn, Life, Publish, Store


class TrainingPorts(VirtualPorts[TrainingProcess, LinkedPlace, Sent, Sent]):
    """The ports over a `TrainingNetwork`: nothing dies but processes, and bytes take their time."""

    def __init__(
        self, network: TrainingNetwork, shards: VirtualShards[Sent, Sent, Any, Any]
    ) -> None:
        super().__init__(network, shards)
        self._timing = network.timing

    def merge_s(self) -> float:
        """Return the duration of a merge, in seconds."""
        return self._timing.merge_s

    async def deliver(
        self, life: Life, process: TrainingProcess, hand_in: tuple[HandIn, Sent] | None
    ) -> None:
        """Carry a learner's answer to the shard, which takes as long as its bytes need."""
        takes_s = self._timing.latency_s
        if hand_in is not None:
            takes_s = self.places[life.island].up.takes_s(self.loop.now_s, hand_in[1].nbytes)
        await self.loop.pause(takes_s)

    async def store(self, order: Store) -> bool:
        """Do nothing: no file outlives this process."""
        return False  # never durable

    async def publish(self, order: Publish) -> Answered:
        """Make a version public, and send it to the lives."""
        shard = self.shards.of(order.fragment).process
        assert shard is not None, "no shard dies in such a run"
        return self.spread(order, shard)

    def arrivals_s(self, place: LinkedPlace, payload: Sent) -> tuple[float, float]:
        """Return when a publication reaches a learner, after its bytes have queued."""
        now_s = self.loop.now_s
        there_s = now_s + place.down.takes_s(now_s, payload.nbytes)
        return there_s, there_s + self._timing.latency_s

    async def discard(self, order: Discard) -> None:
        """Drop a contribution, and give its residual back to the learner if ordered."""
        await super().discard(order)
        contribution_id = order.contribution.id
        if (
            order.returns_residual
            and (process := await self.network.reach(contribution_id.life)) is not None
        ):
            process.refused(contribution_id)

    async def break_down(self, life: Life, why: str) -> None:
        """Raise `AssertionError`: a learner's error is a mistake of ours or of the task."""
        raise AssertionError(f"{life} failed: {why}")
