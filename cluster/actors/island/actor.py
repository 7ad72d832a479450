"""The actor of one island: it holds the process that learns, and answers the calls of the run."""

from __future__ import annotations

import functools
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ray
from ray.exceptions import RayError

from cluster.actors.call_errors import STORE_FULL, failure_of
from cluster.actors.directory import holder_of, setup_logging
from cluster.actors.fault_injection import Breakable, Cable
from cluster.actors.hosts.actor import RayGang
from cluster.actors.learner_link import RayLink
from cluster.actors.object_store.moment_pieces import Giving, Piece, put_pieces
from cluster.config.schema import Config
from cluster.failures import Failure, Reason
from cluster.hosts.first_part import FirstPart
from cluster.names import Seat
from cluster.source import user_sha256
from cluster.tasks import watch_process
from cluster.workers.island_process import IslandProcess
from coordinator.codec import Sent
from coordinator.errors import Malformed
from coordinator.parts import Split
from coordinator.protocol import (
    ContributionId,
    Fragment,
    HandIn,
    Known,
    Life,
    Progress,
    Publication,
    Void,
)

if TYPE_CHECKING:
    from islands.learner import Learner


THREADS = {
    "asking": 16,
    "offering": 4,
    "giving": 8,
    "control": 4,
    "watching": 8,
    "breaking": 4,
}
"""Threads of an island for calls of each kind, so that none waits behind another kind. Learners
that join wait for moments on "giving" for as long as these are copied and stored, so that they hold
up neither hand-ins nor offers; those for whom there is no thread wait as long as the others."""
F = TypeVar("F", bound=Callable[..., Any])


def _its_own(group: str, reason: Reason) -> Callable[[F], F]:
    """A call of this group of threads. Whatever it raises is this island's affair, and ends its
    process: nothing of it gets to whoever called, who hears that it died.

    One decorator for both, since Ray reads its marks from the innermost function.
    """

    def fence(method: F) -> F:
        marked: Any = ray.method(concurrency_group=group)(method)

        @functools.wraps(marked)
        def fenced(self: IslandActor, *arguments: Any) -> Any:
            try:
                return method(self, *arguments)
            except BaseException as error:  # noqa: BLE001 - which ends the process
                self.process.break_down(reason, error)

        return cast("F", fenced)

    return fence


class IslandActor(Breakable):
    """One island with its learner, or a spare that will be one; `hand_in` and `offer` are the two
    ends of its wire."""

    def __init__(self, config: str, group: str, seat: Seat, namespace: str) -> None:
        setup_logging()
        plain = Config.model_validate_json(config, strict=False)
        mine = plain.group(group)
        self._cable = Cable()
        self._giving = Giving()

        def link() -> RayLink:
            relievable, code = mine.spares > 0, user_sha256(plain.task.target)
            return RayLink(
                namespace, self._cable, seat, holder_of(plain), relievable=relievable, code=code
            )

        self._gang: RayGang | None = None

        def gather() -> RayGang:
            self._gang = RayGang(config, mine, seat, namespace, self.process.end)
            return self._gang

        gathered = gather if mine.hosts > 1 else None
        self.process = IslandProcess(plain, mine, link, link, gathered)
        watch_process(lambda error: self.process.break_down(Reason.TRAIN, error))

    @property
    def _learner(self) -> Learner | None:
        """Return the learner that serves this call; block while a cut of the network is
        injected."""
        self._cable.passes()
        return self.process.learner

    @_its_own("asking", Reason.HAND_IN)
    def hand_in(
        self, life: Life, fragment: Fragment, known: Known
    ) -> tuple[HandIn, Sent] | FirstPart | None:
        """Of an island of several hosts, the part of the first."""
        learner = self._learner
        handed = None if learner is None else learner.hand_in(life, fragment, known)
        if handed is None or self._gang is None:
            return handed
        facts, sent = handed
        return self._gang.first_part(fragment, facts, sent)

    @_its_own("giving", Reason.MOMENTS)
    def moments(self, life: Life, split: Split) -> list[Piece] | None:
        """Where they lie in the object store, cut for hosts that are split like this; None if there
        are none, or no room there."""
        if (learner := self._learner) is None:
            return None

        def put() -> list[Piece] | None:
            if (donation := learner.moments(life)) is None:
                return None
            gang, number = self._gang, donation.number
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

    @_its_own("control", Reason.MOMENTS)
    def copied(self, life: Life) -> tuple[int, float]:
        """How many leaves of its moments are copied for whoever asked, and put, and how long a step
        takes it, in seconds."""
        if (learner := self._learner) is None:
            return 0, 0.0
        count, step_s = learner.copied(life)
        return count + self._giving.put_leaves, step_s

    @_its_own("offering", Reason.OFFER)
    def offer(
        self, life: Life, publication: Publication, boxed: Sequence[Sent | ray.ObjectRef]
    ) -> Failure | None:
        """`boxed`: the payload, or a reference to it; in a list, so that Ray does not fetch it
        before it calls. Empty if there was no room for it: the learner asks the shard for what it
        lacks, as it does if the payload cannot be had, which is what is returned."""
        if (learner := self._learner) is None:
            return None
        payload, failure = None, None
        try:
            for each in boxed:
                payload = ray.get(each) if isinstance(each, ray.ObjectRef) else each
        except RayError as error:
            said = failure_of(Reason.OFFER, error)
            failure = replace(said, ends=False) if isinstance(said, Failure) else None
            logging.warning("%s is not to be had: %s", publication.version, said)
        learner.offer(life, publication, payload)
        return failure

    @_its_own("control", Reason.WORDS)
    def refused(self, said: ContributionId) -> None:
        if (learner := self._learner) is not None:
            learner.refused(said)

    @_its_own("control", Reason.WORDS)
    def cease(self, over: Void) -> None:
        if (learner := self._learner) is not None:
            learner.cease(over)

    @_its_own("control", Reason.WORDS)
    def park(self, life: Life) -> None:
        if (learner := self._learner) is not None:
            learner.park(life)

    @_its_own("control", Reason.WORDS)
    def leave(self) -> Progress | None:
        learner = self._learner
        return None if learner is None else learner.leave()

    @_its_own("watching", Reason.WORDS)
    def watch(self, life: Life) -> str:
        """Return when this life is over; if the process dies, whoever called hears it from Ray."""
        learner = self._learner
        return "its process is another one" if learner is None else learner.outlive(life)

    @ray.method(concurrency_group="control")
    def break_down(self, life: Life, why: str) -> None:
        """End the process if it had this life: what came from it was of no use, says the syncer."""
        if (learner := self._learner) is not None and learner.had(life):
            self.process.break_down(Reason.SENT, Malformed(why), known=True)

    @ray.method(concurrency_group="control")
    def spoil(self, factor: float) -> None:
        """Multiply what this process hands in from now on (for fault plans)."""
        if (learner := self.process.learner) is not None:
            learner.spoil = factor

    @ray.method(concurrency_group="breaking")
    def slow(self, factor: float, for_s: float) -> None:
        """Have each step take so many times as long, for a while (for fault plans)."""
        if (learner := self.process.learner) is not None:
            learner.drag = factor
            time.sleep(for_s)
            learner.drag = 1.0

    @ray.method(concurrency_group="breaking")
    def cut(self, for_s: float) -> None:
        self._cable.cut(for_s)

    @ray.method(concurrency_group="breaking")
    def node(self) -> str:
        """On which node it is, by Ray's id."""
        return ray.get_runtime_context().get_node_id()

    @ray.method(concurrency_group="breaking")
    def kill_node(self) -> None:
        """Kill the raylet, which has started this process, and with it everything on the node."""
        os.kill(os.getppid(), signal.SIGKILL)
