"""The actor that conducts rings, in the syncer's place.

Fleet, evaluator and people call it as they call the syncer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np

from cluster.actors.ring.conductor import Conductor
from cluster.allreduce.report import status_of, summary_of, view_of
from cluster.allreduce.ring import RingStage
from cluster.allreduce.ring_messages import RingDrain, RingStop
from cluster.allreduce.saved_state import RingState
from cluster.allreduce.shell import RingShell
from cluster.failures import Unjudged, class_and_message
from cluster.status import RunStatus
from cluster.tasks import Tasks
from cluster.view import ProcessStarts, View
from coordinator.errors import RunFailed
from coordinator.fragments import Flat, take
from coordinator.protocol import Fragment, Island, Version

FRESH_S = 3.0
"""Seconds for which parameters that were fetched from an island are reused."""
LATE_S = 10.0
"""Seconds without an answer of the depot after which the status reports it."""
DURABLE_S = 6.0
"""Seconds after which an order is answered, even if it is not durable yet."""
END_S = 30.0
"""Timeout of each step of the shutdown that waits for the depot, in seconds."""


class RingActor(Conductor):
    """The actor of a conductor: the calls of the fleet, the evaluator and the command line."""

    _seen: tuple[float, RingState] | None = None

    async def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]:
        """Return the model: recent while a ring is running, otherwise exact.

        A recent one may be older than `FRESH_S` if the island does not answer.
        """
        seen = await self._visible_state(await self._open())
        leaves = [np.asarray(leaf) for leaf in seen.params]
        version = Version(0, seen.held.step)
        return [(version, take(self._layout, p, leaves)) for p in fragments]

    async def _visible_state(self, shell: RingShell) -> RingState:
        """Return a state to look at, without moments if it is fetched from an island."""
        if shell.ring.stage is RingStage.OVER:
            return shell.snapshot
        if self._seen is not None and time.monotonic() - self._seen[0] < FRESH_S:
            return self._seen[1]
        known = shell.snapshot if self._seen is None else self._seen[1]
        best = max(known, shell.snapshot, key=lambda each: each.held)
        for life in shell.ring.turning[:1]:
            best = await self._ports.peek(life) or best
        self._seen = time.monotonic(), best
        return best

    async def look(
        self, held: Mapping[Island, str] | None, processes: ProcessStarts | None = None
    ) -> tuple[View, RunStatus]:
        """Return the view for the fleet's decisions, and the status for people.

        `held`: the islands that have devices according to the fleet, with their groups; None: as
        before. `processes`: the starts of their processes.
        """
        shell = await self._open()
        if held is not None:
            shell.measures.held(held, self._now_s())
        shell.measures.looked(processes, self._now_s())
        return view_of(shell.ring, shell.measures.counts), await self.status()

    async def status(self) -> RunStatus:
        """Return the status of the run.

        Errors: `RunFailed` if the conductor cannot continue.
        """
        shell = await self._open()
        if (error := shell.failure) is not None:
            raise RunFailed(f"the conductor has failed: {class_and_message(error)}") from error
        for kind, late_s in shell.records.late():
            if late_s > LATE_S:
                why = f"the depot has not answered for {late_s:.0f} s"
                shell.measures.trouble(kind, why)
        status = status_of(
            self._run,
            shell.rules,
            shell.ring,
            shell.measures.counts,
            self._config.sync.fragments,
            self._now_s(),
        )
        return shell.measures.timed(status, self._now_s())

    async def stop(self, why: str) -> None:
        """Have the run end after the step under way."""
        await self._ordered(RingStop(why))

    async def drain(self, island: Island, why: str) -> None:
        """Have an island leave after the step under way; the others continue."""
        await self._ordered(RingDrain(island, why))

    async def _ordered(self, order: RingStop | RingDrain) -> None:
        """Accept an order; answer once it is durable, or after `DURABLE_S`."""
        shell = await self._open()
        shell.feed(order)
        await asyncio.wait({shell.remember()}, timeout=DURABLE_S)

    async def fault(self, island: Island) -> None:
        """Count an injected fault."""
        shell = await self._open()
        shell.measures.fault(island, self._now_s())
        await asyncio.wait({shell.remember()}, timeout=DURABLE_S)  # this process may be broken next

    async def evaluated(self, t: int, loss: float) -> None:
        """Record the held-out loss of the model at step `t`."""
        (await self._open()).measures.evaluated(t, loss)

    async def unjudged(self, why: Unjudged) -> None:
        """Count an evaluation of the model that failed."""
        (await self._open()).measures.unjudged(why)

    async def close(self) -> dict[str, object]:
        """End everything and return the summary of the run, even if the depot does not answer."""
        shell = await self._open()
        tasks = Tasks(lambda error: logging.error("not ended as it should be: %r", error))
        for ending in (
            tasks.spawn(self._ports.close()),
            shell.remember(),
            shell.records.all_written(),
        ):
            await asyncio.wait({ending}, timeout=END_S)
        shell.close()
        await asyncio.wait({tasks.spawn(self._store.close())}, timeout=END_S)
        return summary_of(shell.ring, shell.measures.counts, self._now_s())
