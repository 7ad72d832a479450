"""The calls of a process that block until the called actor answers, with a timeout or with retries.

They go over the process's cable, which a fault plan can cut for a while.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from cluster.actors.call_errors import STORE_FULL
from cluster.actors.directory import AGAIN_S, Directory
from cluster.actors.fault_injection import Cable
from cluster.failures import origin_of
from cluster.names import CALL_TIMEOUT_S
from coordinator.errors import Unreachable

PASSING = (RayActorError, *STORE_FULL)
"""What another process meets, too, and will not meet for ever."""


class BlockingCalls:
    """One process's calls of the run's actors, by name; for any thread."""

    def __init__(self, actors: Directory, cable: Cable) -> None:
        self._actors, self._cable = actors, cable

    def ask(
        self, actor: str, method: str, *arguments: object, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        """Call once, and return the answer.

        Errors: `Unreachable` if another attempt may succeed; what else the actor raises.
        """
        if not self._cable.passes(timeout_s):
            raise Unreachable(f"the {actor} cannot be heard: the cable is cut")
        try:
            call = getattr(self._actors[actor], method)
            return ray.get(call.remote(*arguments), timeout=timeout_s)
        except RayError as error:
            origin = origin_of(error)
            if isinstance(error, RayTaskError) and not isinstance(origin, PASSING):
                raise
            self._actors.forget(actor)
            raise Unreachable(f"the {actor} cannot be heard: {type(origin).__name__}") from error

    def insist(self, actor: str, method: str, *arguments: object) -> Any:
        """Call again until the actor can be heard, and return the answer.

        Errors: what the actor raises.
        """
        while True:
            try:
                return self.ask(actor, method, *arguments)
            except Unreachable as error:
                logging.info("%s; trying again", error)
                time.sleep(AGAIN_S)
