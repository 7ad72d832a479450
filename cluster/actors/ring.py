"""The actor that conducts rings: in the syncer's place, and called by fleet, evaluator and people
as they call the syncer."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from ray.exceptions import RayError

from cluster.actors.conductor import Conductor
from cluster.allreduce.keeping import RingState
from cluster.allreduce.report import status_of, summary_of, view_of
from cluster.allreduce.ring import Drain, Stop
from cluster.failures import Unjudged
from cluster.names import island_actor
from cluster.status import RunStatus
from cluster.view import View
from coordinator.fragments import Flat, take
from coordinator.protocol import Fragment, Island, Version
from coordinator.state import Phase

FRESH_S = 3.0
"""Parameters that were seen so recently are not asked for again."""


class RingActor(Conductor):
    """What a run is asked from outside, of its ring."""

    async def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]:
        """The model: as of a moment ago while a ring turns, else as it is."""
        await self._open()
        seen = await self._look_at_it()
        leaves = [np.asarray(leaf) for leaf in seen.params]
        version = Version(0, seen.held.step)
        return [(version, take(self._layout, p, leaves)) for p in fragments]

    async def _look_at_it(self) -> RingState:
        assert self._snapshot is not None
        if self._finished:
            return self._snapshot
        if self._seen is not None and time.monotonic() - self._seen[0] < FRESH_S:
            return self._seen[1]
        best = (
            self._snapshot
            if self._seen is None
            else max(self._seen[1], self._snapshot, key=lambda each: each.held)
        )
        for life in self._ring.turning[:1]:
            try:
                actor = await self._actors.find(island_actor(self._seats[life.island]))
                if (state := await actor.peek.remote()) is not None:
                    best = state
            except RayError as error:
                logging.info("%s does not show its model: %s", life, type(error).__name__)
        self._seen = time.monotonic(), best
        return best

    async def look(self, held: Mapping[Island, str]) -> tuple[View, RunStatus]:
        await self._open()
        self._measures.held(held, self._now_s())
        view = view_of(self._ring, self._measures.counts)
        if view.phase is Phase.FINISHED and not self._finished:
            view = replace(view, phase=Phase.STOPPING)  # its result is on its way
        return view, await self.status()

    async def status(self) -> RunStatus:
        await self._open()
        return status_of(
            self._run,
            self._rules,
            self._ring,
            self._measures.counts,
            self._config.sync.fragments,
            self._now_s(),
        )

    async def stop(self, why: str) -> None:
        await self._open()
        self._feed(Stop(why))

    async def drain(self, island: Island, why: str) -> None:
        await self._open()
        self._feed(Drain(island, why))

    async def fault(self, island: Island) -> None:
        await self._open()
        self._measures.fault(island, self._now_s())
        self._remember(always=True)  # it may be this process that is broken next

    async def evaluated(self, t: int, loss: float) -> None:
        await self._open()
        self._measures.evaluated(t, loss)

    async def unjudged(self, why: Unjudged) -> None:
        await self._open()
        self._measures.unjudged(why)

    async def close(self) -> dict[str, object]:
        """The run is over: let go of everything, and sum up."""
        await self._open()
        self._meetings.close()
        self._remember(always=True)
        self._journal.close()
        return summary_of(self._ring, self._measures.counts, self._now_s())
