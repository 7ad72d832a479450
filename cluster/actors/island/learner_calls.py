"""The calls of syncer, shards and other islands that an island answers with what its learner has.

They are for the threads of the actor. Each finds the learner that serves it, or none: then the
island has no life, and there is nothing to answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import ray
from ray.exceptions import RayError

from cluster.actors.call_errors import STORE_FULL, failure_of
from cluster.actors.hosts.ray_gang import RayGang
from cluster.actors.object_store.moment_pieces import Giving, Piece, put_pieces
from cluster.failures import Failure, Reason
from cluster.hosts.first_part import FirstPart
from coordinator.codec import Sent
from coordinator.parts import Split
from coordinator.protocol import Fragment, HandIn, Known, Life, Publication

if TYPE_CHECKING:
    from islands.learner import Learner


class LearnerCalls:
    """One island's answers. `gang`: the other hosts of the island, once they have met."""

    def __init__(self, learner: Callable[[], Learner | None]) -> None:
        """`learner`: returns the one that serves a call; it may block."""
        self._learner = learner
        self._giving = Giving()
        self.gang: RayGang | None = None

    def hand_in(
        self, life: Life, fragment: Fragment, known: Known
    ) -> tuple[HandIn, Sent] | FirstPart | None:
        """Return what this life has trained; of several hosts, the first one's part."""
        learner = self._learner()
        handed = None if learner is None else learner.hand_in(life, fragment, known)
        if handed is None or self.gang is None:
            return handed
        facts, sent = handed
        return self.gang.first_part(fragment, facts, sent)

    def moments(self, life: Life, split: Split) -> list[Piece] | None:
        """Return where the moments lie in the object store, cut for hosts that are split like this;
        None if there are none, or no room there."""
        if (learner := self._learner()) is None:
            return None

        def put() -> list[Piece] | None:
            if (donation := learner.moments(life)) is None:
                return None
            gang, number = self.gang, donation.number
            others = None if gang is None else gang.moments(life, split, number)
            came = self._giving.came
            mine = put_pieces(donation.leaves, learner.shares, split, first=True, came=came)
            if others is None:
                return mine
            theirs = others()
            return None if theirs is None else [*mine, *theirs]

        try:
            return self._giving.once(life, split, put)
        except STORE_FULL as error:  # the donor has done nothing wrong
            logging.warning("no moments for a newcomer, the object store has no room: %s", error)
            return None

    def copied(self, life: Life) -> tuple[int, float]:
        """Return how many leaves of its moments are copied for others, and put, and how long a step
        takes it, in seconds."""
        if (learner := self._learner()) is None:
            return 0, 0.0
        count, step_s = learner.copied(life)
        return count + self._giving.put_leaves, step_s

    def offer(
        self, life: Life, publication: Publication, boxed: Sequence[Sent | ray.ObjectRef]
    ) -> Failure | None:
        """Offer a publication to the learner, and return why its payload cannot be had, if so.

        `boxed`: the payload, or a reference to it. Empty if there was no room for it: the learner
        asks the shard for what it lacks, as it does if the payload cannot be had.
        """
        if (learner := self._learner()) is None:
            return None
        payload, failure = None, None
        try:
            for each in boxed:
                payload = ray.get(each) if isinstance(each, ray.ObjectRef) else each
        except RayError as error:
            found = failure_of(Reason.OFFER, error)
            failure = replace(found, ends=False) if isinstance(found, Failure) else None
            logging.warning("%s is not to be had: %s", publication.version, found)
        learner.offer(life, publication, payload)
        return failure
