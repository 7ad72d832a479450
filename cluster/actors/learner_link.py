"""A learner's way to the syncer, the shards and the fleet: its `Link`, over Ray."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from cluster.actors.blocking_calls import BlockingCalls
from cluster.actors.directory import Directory
from cluster.actors.donor_moments import DonorMoments
from cluster.actors.fault_injection import Cable
from cluster.actors.object_store.fragment_reader import FragmentReader
from cluster.actors.object_store.pull import Fetching
from cluster.failures import Failure
from cluster.names import FLEET, SYNCER, Seat, island_actor, seat_of
from cluster.source import source_sha256
from coordinator.codec import Payload, Sent
from coordinator.errors import Relieved, Unreachable
from coordinator.fragments import Flat
from coordinator.protocol import (
    Adopted,
    Answer,
    Fragment,
    Granted,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Progress,
    Refused,
    Report,
    Version,
    Vitals,
    Void,
)

SIGN_S = 2.0
"""A learner that joins says so often that it goes on, while something comes."""
LAST_WORDS_S = 5.0
"""A process that breaks waits no longer for the syncer to hear of it; its death will be seen."""


class _Over(Exception):
    """The life that is joined has been ended by the syncer."""


class RayLink:
    """One process's way to the coordinator and to the fleet: each call waits for its answer."""

    def __init__(
        self,
        namespace: str,
        cable: Cable,
        seat: Seat,
        holder: Mapping[Fragment, str],
        *,
        relievable: bool,
        code: str = "",
        get: Callable[[ray.ObjectRef], Any] | None = None,
    ) -> None:
        """`holder`: the shard that has it, for each fragment. `relievable`: a spare may have taken
        its island over. `code`: what its task was made of (`user_sha256`). `get`: pulls an object;
        None: Ray does."""
        self._actors, self._code = Directory(namespace), code
        self._calls = BlockingCalls(self._actors, cable)
        self._seat, self._relievable = seat, relievable
        self._others: Mapping[Island, Seat] = {}
        self._joining: Granted | None = None  # until it has all that it needs
        self._said_s = -math.inf
        self._fetching = Fetching(cable, get=get)
        self._reader = FragmentReader(self._calls.insist, self._calls.ask, self._fetching, holder)
        self.donors = DonorMoments(self._actors, cable, self._calls, self._fetching, self._goes_on)
        self.tell: Callable[[], None] | None = None  # another host that something has come

    def join(self, event: Join) -> Granted | Refused:
        """Errors: `Relieved` if the island is somebody else by now."""
        if self._relievable and (now := self.role(warm=False)) != event.island:
            raise Relieved(f"a spare is {event.island} now; {self._seat} is {now or 'a spare'}")
        mine = event, source_sha256(), self._seat, self._code
        answer, self._others = self._calls.insist(SYNCER, "join", *mine)
        self._joining = answer if isinstance(answer, Granted) else None
        return answer

    def _goes_on(self) -> None:
        """Something has come: while a learner joins that is a sign of life.

        Errors: `_Over` if the life that is joined is over.
        """
        if not self._said():
            raise _Over

    def came(self) -> None:
        """Do as `_goes_on` where nothing can be done about a life that is over: another host of the
        island has come further, or a version comes that was missed."""
        self._said()

    def _said(self) -> bool:
        """Say that something has come, if that was not said lately; False if the life that is
        joined is over."""
        if time.monotonic() - self._said_s < SIGN_S:
            return True
        if self.tell is not None:
            self.tell()
        if (granted := self._joining) is None:
            self._said_s = time.monotonic()
            return True
        nothing = Report(granted.life, Progress(0, 0, granted.leases[0]), 0.0)
        try:
            if isinstance(self._calls.ask(SYNCER, "report", nothing, Vitals(math.nan), ()), Void):
                return False
        except Unreachable as error:
            logging.info("%s", error)
        self._said_s = time.monotonic()
        return True

    @property
    def ranges(self) -> Mapping[Fragment, slice] | None:
        """What this host has of each fragment; None if it has all of them."""
        return self._reader.ranges

    @ranges.setter
    def ranges(self, ranges: Mapping[Fragment, slice] | None) -> None:
        self._reader.ranges = ranges

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer | Void:
        self._joining = None  # it speaks for itself
        return self._calls.ask(SYNCER, "report", event, vitals, adopted)

    def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        return self._calls.ask(SYNCER, "lease", event)

    def left(self, event: Left) -> None:
        self._calls.ask(SYNCER, "left", event)

    def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]] | None:
        """Return the public fragments, or this host's ranges of them; None if the life that is
        joined was over before they had come."""
        granted = self._joining
        least = {} if granted is None else {p: granted.versions[p] for p in fragments}
        try:
            return self._reader.whole(fragments, least, self._goes_on)
        except _Over:
            logging.info("this life was over before it had the model")
            return None

    def mean_moments(self, fragments: Sequence[Fragment]) -> dict[Fragment, Payload] | None:
        try:
            return self._reader.mean_moments(fragments, self._goes_on)
        except _Over:
            logging.info("this life was over before it had the moments")
            return None

    def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Sent] | tuple[Version, Flat]:
        """Ask the shard once; a learner that still needs it asks again (`islands.link.Link`)."""
        return self._reader.missed(p, older, newer, self.came)

    def moments(self, donor: Life) -> list[NDArray[Any]] | None:
        """A donor that copies nothing more, or answers with an error, is passed over.

        Errors: `Unreachable`; `Malformed`.
        """
        name = island_actor(self._others.get(donor.island, seat_of(donor.island)))
        try:
            return self.donors.moments(name, donor)
        except _Over as error:
            raise Unreachable("this life is over") from error

    def starting(self) -> float:
        return self._calls.insist(FLEET, "starting", self._seat)

    def role(self, *, warm: bool) -> Island | None:
        return self._calls.insist(FLEET, "role", self._seat, warm)

    def broke(self, failure: Failure | None, words: str) -> None:
        try:
            if failure is not None:
                self._calls.ask(SYNCER, "broke", self._seat, failure, timeout_s=LAST_WORDS_S)
        except (Unreachable, RayError) as error:
            logging.warning("the syncer is not told: %s", error)
        self._calls.ask(FLEET, "broke", self._seat, words)
