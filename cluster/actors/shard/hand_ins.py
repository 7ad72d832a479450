"""The hand-ins of islands: the shard asks for each, checks the answer, measures and holds it."""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine, Mapping

from ray.exceptions import RayError

from cluster.actors.call_errors import unanswered
from cluster.actors.directory import Directory
from cluster.actors.shard.host_parts import all_parts
from cluster.actors.shard.process import ShardProcess
from cluster.failures import Failure, Reason
from cluster.hosts.first_part import FirstPart
from cluster.names import Seat, island_actor
from cluster.shard.fates import Fates
from cluster.syncer.collect import Gatherer, Handed, HandInAnswers
from cluster.transfers import Upload, unpacked
from coordinator.message_checks import flaw
from coordinator.parts import joined
from coordinator.protocol import Fragment, Life


class HandIns:
    """The requests of a shard to islands for their contributions; for its event loop."""

    def __init__(self, process: ShardProcess, actors: Directory, fates: Fates) -> None:
        self._process, self._actors, self._fates = process, actors, fates
        self._gatherer = Gatherer()
        self._uploads: list[Upload] = []  # since the last answer

    async def collect(self, fragment: Fragment, seats: Mapping[Life, Seat]) -> HandInAnswers:
        """Ask the learners in these seats to hand in; return once some have, not all."""

        def ask(life: Life) -> Coroutine[None, None, Handed]:
            return self._collect(life, fragment, island_actor(seats[life]))

        return await self._gatherer.gather(fragment, [*seats], ask)

    async def _collect(self, life: Life, fragment: Fragment, name: str) -> Handed:
        """Hold and measure the hand-in of the learner in the actor `name`, or return why not."""
        began_s = time.monotonic()
        try:
            island = await self._actors.find(name)
            known = self._fates.known(life, fragment)
            answer = await island.hand_in.remote(life, fragment, known)
        except RayError as error:
            return unanswered(self._actors, name, life, Reason.HAND_IN, error)
        contribution, first_s = unpacked(answer, time.monotonic() - began_s)
        first_done_s = time.monotonic()
        if isinstance(contribution, FirstPart):
            size, facts = self._process.sizes[fragment], contribution.part.facts
            parts = await all_parts(contribution, life, fragment, known, size, self._actors)
            if isinstance(parts, Failure | str):
                return parts
            contribution = facts, await self._process.compute(joined, parts, size)
        if contribution is None:
            return None
        if (why := flaw(contribution, life, fragment)) is not None:
            logging.error("the contribution of %s is invalid: %s", life, why)
            return Failure(Reason.SENT, why)
        if first_s is not None:
            transfer_s = first_s + time.monotonic() - first_done_s
            self._uploads.append(Upload(life, contribution[1].nbytes, transfer_s))
        received = await self._process.compute(self._process.shard.receive, *contribution)
        self._fates.arrived(received.id)
        return received

    def uploads(self) -> list[Upload]:
        """Return the transfers of contributions since the last call."""
        uploads, self._uploads = self._uploads, []
        return uploads

    def forget(self) -> None:
        """Cancel all pending requests: the syncer that made them is gone."""
        self._gatherer.forget()
