"""An island's link to the conductor of its ring, to the fleet and to other islands, over Ray."""

from __future__ import annotations

from typing import Any

from ray.exceptions import RayError

from cluster.actors.fault_injection import Cable
from cluster.actors.learner_link import RayLink
from cluster.allreduce.ring_messages import RingDecision, TrainingPosition
from cluster.allreduce.saved_state import RingState
from cluster.config.schema import Config
from cluster.names import SYNCER, Seat, group_name, island_actor, seat_of
from cluster.source import learner_sha256, source_sha256
from coordinator.errors import Rejected, Unreachable
from coordinator.protocol import Island, Join, Life, Refused, Report, Vitals


class RingRayLink(RayLink):
    """An island's link to the conductor; messages on progress are cumulative and not awaited."""

    def __init__(self, config: Config, namespace: str, seat: Seat) -> None:
        code = learner_sha256(config.learner_code, config.pickled_code)
        super().__init__(namespace, Cable(), seat, {}, relievable=False, code=code)

    def enter(self, island: Island) -> Life:
        """Ask the conductor for a life, with retries while it is away.

        Errors: `Rejected` if it refuses the island.
        """
        join = Join(island, group_name(island), "")
        answer = self._calls.insist(SYNCER, "enter", join, source_sha256(), self._seat, self._code)
        if isinstance(answer, Refused):
            raise Rejected(f"{island} may not join: {answer.why}")
        return answer

    def ready(self, life: Life, held: TrainingPosition | None, wasted: int) -> RingDecision | None:
        """Wait for a place in a ring; None: this life gets none any more."""
        while True:
            waits, turn = self._calls.insist(SYNCER, "ready", life, held, wasted)
            if not waits:
                return turn

    def turned(self, life: Life, ring: int, held: TrainingPosition) -> None:
        """Send the progress of the ring to the conductor, without waiting."""
        self._say("turned", life, ring, held)

    def report(self, report: Report, vitals: Vitals) -> None:  # type: ignore[override]
        """Report progress and vitals to the conductor, without waiting."""
        self._say("report", report, vitals)

    def keep(self, life: Life, state: RingState) -> None:
        """Send the conductor a snapshot to keep, without waiting."""
        self._say("keep", life, state)

    def snapshot(self) -> RingState:
        """Return the conductor's last snapshot, with retries while it is away."""
        return self._calls.insist(SYNCER, "snapshot")

    def state_of(self, donor: Life) -> RingState | None:
        """Return the training state of another island; None if it has none or cannot be reached."""
        try:
            return self._calls.ask(island_actor(seat_of(donor.island)), "state_of", donor)
        except (Unreachable, RayError):  # it has died since: a new ring will form
            return None

    def _say(self, method: str, *arguments: Any) -> None:
        """Send a message to the conductor without waiting for the answer."""
        try:
            getattr(self._actors[SYNCER], method).remote(*arguments)
        except RayError:  # it is being restarted: the next message will reach it
            self._actors.forget(SYNCER)
