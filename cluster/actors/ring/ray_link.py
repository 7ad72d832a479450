"""An island's way to the conductor of its ring, to the fleet and to other islands, over Ray."""

from __future__ import annotations

from typing import Any

from ray.exceptions import RayError

from cluster.actors.fault_injection import Cable
from cluster.actors.learner_link import RayLink
from cluster.allreduce.ring_messages import RingDecision, TrainingPosition
from cluster.allreduce.saved_state import RingState
from cluster.config.schema import Config
from cluster.names import SYNCER, Seat, group_name, island_actor, seat_of
from cluster.source import source_sha256, user_sha256
from coordinator.errors import Rejected, Unreachable
from coordinator.protocol import Island, Join, Life, Refused, Report, Vitals


class RingRayLink(RayLink):
    """What is said here of steps and vitals is not waited for: it is cumulative."""

    def __init__(self, config: Config, namespace: str, seat: Seat) -> None:
        code = user_sha256(config.task.target)
        super().__init__(namespace, Cable(), seat, {}, relievable=False, code=code)

    def enter(self, island: Island) -> Life:
        join = Join(island, group_name(island), "")
        answer = self._calls.insist(SYNCER, "enter", join, source_sha256(), self._seat, self._code)
        if isinstance(answer, Refused):
            raise Rejected(f"{island} may not join: {answer.why}")
        return answer

    def ready(self, life: Life, held: TrainingPosition | None, wasted: int) -> RingDecision | None:
        while True:
            waits, turn = self._calls.insist(SYNCER, "ready", life, held, wasted)
            if not waits:
                return turn

    def turned(self, life: Life, ring: int, held: TrainingPosition) -> None:
        self._say("turned", life, ring, held)

    def report(self, report: Report, vitals: Vitals) -> None:  # type: ignore[override]
        self._say("report", report, vitals)

    def keep(self, life: Life, state: RingState) -> None:
        self._say("keep", life, state)

    def snapshot(self) -> RingState:
        return self._calls.insist(SYNCER, "snapshot")

    def state_of(self, donor: Life) -> RingState | None:
        try:
            return self._calls.ask(island_actor(seat_of(donor.island)), "state_of", donor)
        except (Unreachable, RayError):  # it has died since: the ring forms anew
            return None

    def _say(self, method: str, *arguments: Any) -> None:
        try:
            getattr(self._actors[SYNCER], method).remote(*arguments)
        except RayError:  # the conductor is being restarted: it hears the next one
            self._actors.forget(SYNCER)
