"""Calls that block until the called actor answers, with a timeout or with retries.

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
"""Errors that the called process may itself meet in its own calls, and that are transient."""


class BlockingCalls:
    """One process's calls to the run's actors, by name; usable on any thread."""

    def __init__(self, actors: Directory, cable: Cable) -> None:
        self._actors, self._cable = actors, cable

    def ask(
        self, actor: str, method: str, *arguments: object, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        """Call once, and return the answer.

        `timeout_s`: in seconds.

        Errors: `Unreachable` if another attempt may succeed, as while a restarted actor waits for
        its storage; otherwise the actor's own exception.
        """
        if not self._cable.passes(timeout_s):
            raise Unreachable(f"the {actor} cannot be reached: its connection is cut")
        try:
            call = getattr(self._actors[actor], method)
            return ray.get(call.remote(*arguments), timeout=timeout_s)
        except RayError as error:
            origin = origin_of(error)
            if isinstance(origin, Unreachable):  # it is there, and waits for its storage
                raise Unreachable(str(origin)) from error
            if isinstance(error, RayTaskError) and not isinstance(origin, PASSING):
                raise
            self._actors.forget(actor)
            raise Unreachable(f"the {actor} cannot be reached: {type(origin).__name__}") from error

    def insist(self, actor: str, method: str, *arguments: object) -> Any:
        """Call with retries, `AGAIN_S` apart, until the actor is reachable; return the answer.

        Errors: the actor's own exception.
        """
        while True:
            try:
                return self.ask(actor, method, *arguments)
            except Unreachable as error:
                logging.info("%s; trying again", error)
                time.sleep(AGAIN_S)
