"""The fleet's core actors: syncer, shards and evaluator, started, asked and ended."""

from __future__ import annotations

from dataclasses import dataclass

import ray
from ray.exceptions import ActorUnavailableError

from cluster.actors.calls import STORE_FULL
from cluster.actors.directory import Actor
from cluster.fleet.judging import Evaluating, Pending

ANSWER_TIMEOUT_S = 120.0
"""For an answer of the run's own actors, imports and compilation included."""
AWAY = (ActorUnavailableError, *STORE_FULL)
"""An actor that is being restarted, or whose answer there is no room for."""
AGAIN_S = 0.5
"""Between two attempts to hear an actor that is being restarted."""


@dataclass(frozen=True, slots=True)
class RayEvaluator(Evaluating):
    """... on Ray."""

    actor: Actor

    def ask(self, method: str, *arguments: object) -> Pending:
        reference = getattr(self.actor, method).remote(*arguments)
        return lambda wait_s: ray.get(reference, timeout=wait_s)

    def restart(self) -> None:
        ray.kill(self.actor, no_restart=False)
