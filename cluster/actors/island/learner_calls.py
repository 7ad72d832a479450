"""The calls of syncer, shards and other islands that an island answers from its learner.

They run on the threads of the actor. Each call looks for the learner that serves it. If there is
none, the island has no life, and the answer is empty.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import ray
from ray.exceptions import GetTimeoutError, RayError

from cluster.actors.call_errors import STORE_FULL, failure_of
from cluster.actors.hosts.ray_gang import RayGang
from cluster.actors.island.call_threads import THREADS
from cluster.actors.island.payload_waits import PayloadWaits
from cluster.actors.object_store.moment_pieces import DonatedMoments, MomentPieceRef, put_pieces
from cluster.actors.object_store.pull import Patience
from cluster.config.region_tables import Leaving
from cluster.failures import Failure, Reason
from cluster.hosts.first_part import FirstPart
from cluster.transfers import Prepared
from cluster.workers.border import OPEN, Border
from coordinator.codec import Sent
from coordinator.parts import Split
from coordinator.protocol import Fragment, HandIn, Known, Life, Publication

if TYPE_CHECKING:
    from islands.learner import Learner


class LearnerCalls:
    """One island's answers; `gang`: the other hosts of the island, once they have met."""

    def __init__(self, learner: Callable[[], Learner | None], border: Border | None = None) -> None:
        """`learner` returns the learner that serves a call, and may block.

        `border`: the border of the island's region, which every answer passes; None: there is none.
        """
        self._learner, self._border = learner, border or OPEN
        self._giving, self._patience = DonatedMoments(), Patience()
        self._waits = PayloadWaits(THREADS["offering"])
        self.gang: RayGang | None = None

    def hand_in(self, life: Life, fragment: Fragment, known: Known) -> Prepared:
        """Return this life's contribution to a fragment; with several hosts, the first's part."""
        began_s = time.monotonic()
        answer = self._contribution(life, fragment, known)
        return Prepared(answer, time.monotonic() - began_s)

    def _contribution(
        self, life: Life, fragment: Fragment, known: Known
    ) -> tuple[HandIn, Sent] | FirstPart | None:
        learner = self._learner()
        contribution = None if learner is None else learner.hand_in(life, fragment, known)
        if contribution is None or self.gang is None:
            return self._border.passes(Leaving.DELTA, contribution)
        facts, sent = self._border.passes(Leaving.DELTA, contribution)
        return self.gang.first_part(fragment, facts, sent)

    def moments(self, life: Life, split: Split) -> list[MomentPieceRef] | None:
        """Put the moments into the object store, and return their pieces.

        `split`: how the receiving island is split over its devices. None if there are no moments,
        the store has no room, or moments may not leave the island's region.
        """
        if not self._border.permits(Leaving.MOMENTS) or (learner := self._learner()) is None:
            return None

        def put() -> list[MomentPieceRef] | None:
            if (donation := learner.moments(life)) is None:
                return None
            gang, number = self.gang, donation.number
            wait_for_others = None if gang is None else gang.moments(life, split, number)
            on_progress = self._giving.came
            own_pieces = put_pieces(
                donation.leaves, learner.shares, split, first=True, came=on_progress
            )
            if wait_for_others is None:
                return own_pieces
            other_pieces = wait_for_others()
            return None if other_pieces is None else [*own_pieces, *other_pieces]

        try:
            return self._giving.once(life, split, put)
        except STORE_FULL as error:  # not the donor's fault
            logging.warning("no moments for a newcomer, the object store has no room: %s", error)
            return None

    def copied(self, life: Life) -> tuple[int, float]:
        """Return the number of moment leaves copied and stored so far, and a step's seconds.

        The first is the sum of both counts: it grows as long as the donor makes progress.
        """
        if (learner := self._learner()) is None:
            return 0, 0.0
        count, step_s = learner.copied(life)
        return count + self._giving.put_leaves, step_s

    def offer(
        self, life: Life, publication: Publication, boxed: Sequence[Sent | ray.ObjectRef]
    ) -> Failure | None:
        """Offer a publication to the learner; return a failure if its payload could not be fetched.

        `boxed`: the payload, or a reference to it; empty if there was no room for it. Without a
        payload, or if it does not arrive in time, the learner asks the shard for the versions that
        it lacks. A life that is over or catches up needs none, so none is fetched.
        """
        if (learner := self._learner()) is None:
            return None
        payload, failure = None, None
        if not learner.needs_payload(life, publication.fragment):
            boxed = ()
        try:
            for each in boxed:
                payload = self._arrived(publication.fragment, each)
        except RayError as error:
            found = failure_of(Reason.OFFER, error)
            if isinstance(found, Failure):
                failure = self._border.stripped(replace(found, ends=False))
            logging.warning("%s is not to be had: %s", publication.version, found)
        learner.offer(life, publication, payload)
        return failure

    def _arrived(self, fragment: Fragment, each: Sent | ray.ObjectRef) -> Sent | None:
        """Return a payload; None if it did not arrive within the time that a thread has for it."""
        if not isinstance(each, ray.ObjectRef):
            return each
        with self._waits.of(fragment) as longest_s:
            return self._fetched(each, longest_s) if longest_s > 0 else None

    def _fetched(self, reference: ray.ObjectRef, longest_s: float) -> Sent | None:
        """Return a payload; None if it did not arrive in time, as after a cut of the link."""
        began_s, patience_s = time.monotonic(), self._patience.seconds()
        within_s = min(longest_s, patience_s)
        try:
            payload: Sent = ray.get(reference, timeout=within_s)
        except GetTimeoutError:
            if within_s == patience_s:
                self._patience.in_vain()
            logging.warning("a publication did not arrive within %.0f s", within_s)
            return None
        self._patience.came(time.monotonic() - began_s)
        return payload
