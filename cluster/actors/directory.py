"""Handles of a run's actors, looked up by name, and which shard has which fragment."""

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
"""Between two attempts to be heard."""
REACHED_S = 30.0
"""For so long a process that has spoken may be unknown to Ray, which is restarting its actor."""
SEEKERS = 8
"""Threads of an event loop's process that ask the head where actors are: as many look-ups at once,
while it is slow."""
Actor = Any
"""A handle of an actor: Ray gives it no type."""


def setup_logging() -> None:
    """Lines for people, on standard error: Ray keeps them with the actor's logs."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname).1s %(message)s",
        force=True,
    )
    logging.getLogger("jax").setLevel(logging.WARNING)


class Directory:
    """Handles of a run's actors, looked up by name once each, or when one seems to be dead: an
    island that was given back and is placed again has a new actor of the same name."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._known: dict[str, Actor] = {}
        self._sought: dict[str, asyncio.Future[Actor]] = {}
        self._seekers = ThreadPoolExecutor(SEEKERS, "look up")

    def __getitem__(self, name: str) -> Actor:
        """Errors: `RayActorError` if it is not there, as a call to it would raise; `RayError` if
        the head does not answer."""
        if (actor := self._known.get(name)) is None:
            actor = self._known[name] = self._look_up(name)
        return actor  # which another thread may have been told to forget by now

    async def find(self, name: str) -> Actor:
        """The same on an event loop, which goes on meanwhile: the head may be away for minutes, and
        is waited for. Who asks for the same name waits for the same look-up, in order.

        Errors: `RayActorError` if it is not there.
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
        """The handle of one that has just spoken, once a call gets to it: until Ray knows of a new
        process it lets calls fail as if that one had died.

        Errors: `RayActorError` if it is not there, or not to be reached for `REACHED_S`.
        """
        self.forget(name)  # there is none newer than who has just spoken
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
        there = not sought.cancelled() and sought.exception() is None
        if self._sought.get(name) is not sought:
            return  # it was told to forget it meanwhile
        del self._sought[name]
        if there:
            self._known[name] = sought.result()

    def forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._sought.pop(name, None)

    def _seek(self, name: str) -> Actor:
        while True:
            try:
                return self._look_up(name)
            except GetTimeoutError as error:
                logging.warning("the head does not answer: %s", error)

    def _look_up(self, name: str) -> Actor:
        try:
            return ray.get_actor(name, namespace=self._namespace)
        except ValueError as error:
            raise RayActorError(error_msg=f"there is no {name}") from error


def holder_of(config: Config) -> dict[Fragment, str]:
    """The shard that has it, for each fragment; or who conducts the ring."""
    if config.run.mode.sums_gradients:
        return {Fragment(p): SYNCER for p in range(config.sync.fragments)}
    shards = shards_of(config.sync.shards, config.sync.fragments)
    return {p: name for name, fragments in shards.items() for p in fragments}
