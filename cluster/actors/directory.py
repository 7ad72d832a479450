"""Handles of a run's actors, looked up by name, and the shard that holds each fragment."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

from cluster.config.schema import Config
from cluster.names import SYNCER, shards_of
from coordinator.protocol import Fragment

AGAIN_S = 0.5
"""Seconds between two attempts to reach an actor."""
REACHED_S = 30.0
"""Seconds for which Ray may not yet list a restarted process that has just called us."""
SEEKERS = 8
"""Threads of a process that look actors up at the Ray head.

Up to this many look-ups run at the same time while the head is slow.
"""
Actor = Any
"""A handle of an actor; Ray gives it no type."""


def setup_logging() -> None:
    """Log readable lines to standard error; Ray keeps them with the actor's logs."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname).1s %(message)s",
        force=True,
    )
    logging.getLogger("jax").setLevel(logging.WARNING)


class Directory:
    """Handles of a run's actors by name, cached until `forget`.

    An island that was given back and is placed again has a new actor of the same name. A handle
    must therefore be forgotten when its actor seems to be dead.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._known: dict[str, Actor] = {}
        self._sought: dict[str, asyncio.Future[Actor]] = {}
        self._seekers = ThreadPoolExecutor(SEEKERS, "look up")

    def __getitem__(self, name: str) -> Actor:
        """Return the handle of an actor; block while it is looked up.

        Errors: `RayActorError` if there is no such actor, as a call to it would raise; `RayError`
        if the head does not answer.
        """
        if (actor := self._known.get(name)) is None:
            actor = self._known[name] = self._look_up(name)
        return actor  # the cache may have lost it by now: another thread may call `forget`

    async def find(self, name: str) -> Actor:
        """Return the handle of an actor without blocking the event loop.

        The head may be away for minutes; this waits for it. Concurrent requests for the same name
        share one look-up, and are answered in order.

        Errors: `RayActorError` if there is no such actor.
        """
        if (known := self._known.get(name)) is not None:
            return known
        if name not in self._sought:
            loop = asyncio.get_running_loop()
            sought = loop.run_in_executor(self._seekers, self._seek, name)
            sought.add_done_callback(functools.partial(self._answered, name))
            self._sought[name] = sought
        return await asyncio.shield(self._sought[name])

    async def reach(self, name: str) -> Actor:
        """Return the handle of an actor that has just called us, once calls reach it.

        Until Ray lists a restarted process, calls to it fail as if the process had died.

        Errors: `RayActorError` if there is no such actor, or it is unreachable for `REACHED_S`.
        """
        self.forget(name)  # the cached handle may be of an earlier process
        end_s = time.monotonic() + REACHED_S
        while True:
            actor = await self.find(name)
            try:
                await actor.__ray_ready__.remote()
                return actor
            except ActorUnavailableError:
                if time.monotonic() > end_s:
                    raise
                await asyncio.sleep(AGAIN_S)

    def _answered(self, name: str, sought: asyncio.Future[Actor]) -> None:
        exists = not sought.cancelled() and sought.exception() is None
        if self._sought.get(name) is not sought:
            return  # the name was forgotten meanwhile
        del self._sought[name]
        if exists:
            self._known[name] = sought.result()

    def forget(self, name: str) -> None:
        """Drop the cached handle and any look-up under way, so that the next use looks it up."""
        self._known.pop(name, None)
        self._sought.pop(name, None)

    def _seek(self, name: str) -> Actor:
        """Look an actor up, with retries while the head does not answer."""
        while True:
            try:
                return self._look_up(name)
            except GetTimeoutError as error:
                logging.warning("the head does not answer: %s", error)

    def _look_up(self, name: str) -> Actor:
        """Ask the head for an actor.

        Errors: `RayActorError` if there is none of this name.
        """
        try:
            return ray.get_actor(name, namespace=self._namespace)
        except ValueError as error:
            raise RayActorError(error_msg=f"there is no {name}") from error


def holder_of(config: Config) -> dict[Fragment, str]:
    """Return the name of the shard that holds each fragment, or of the conductor of the ring."""
    if config.run.mode.sums_gradients:
        return {Fragment(p): SYNCER for p in range(config.sync.fragments)}
    shards = shards_of(config.sync.shards, config.sync.fragments)
    return {p: name for name, fragments in shards.items() for p in fragments}
