"""A learner's `Link` to the syncer, the shards and the fleet, over Ray."""

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
from cluster.config.region_tables import Leaving
from cluster.failures import Failure
from cluster.names import FLEET, SYNCER, Seat, island_actor, seat_of
from cluster.source import source_sha256
from cluster.workers.border import OPEN, Border
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
"""Seconds between two signs of life of a joining learner, while its data arrives."""
LAST_WORDS_S = 5.0
"""Timeout of a breaking process's report to the syncer, which will also notice its death."""


class _Over(Exception):
    """The syncer has ended the life that is joining."""


class RayLink:
    """One process's link to syncer, shards and fleet; each call waits for its answer."""

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
        border: Border | None = None,
    ) -> None:
        """Connect a process in the run's namespace.

        `holder`: the name of the shard that holds each fragment. `relievable`: a spare may have
        taken this process's island over. `code`: the digest of the user's code (`user_sha256`).
        `get`: pulls an object; None: `ray.get`. `border`: the border of the process's region, which
        every message passes; None: there is none.
        """
        self._actors, self._code = Directory(namespace), code
        self._calls = BlockingCalls(self._actors, cable)
        self._seat, self._relievable = seat, relievable
        self._border = border or OPEN
        self._others: Mapping[Island, Seat] = {}
        self._joining: Granted | None = None  # until it has all that it needs to step
        self._signed_s = -math.inf
        self._fetching = Fetching(cable, get=get)
        self._reader = FragmentReader(self._calls.insist, self._calls.ask, self._fetching, holder)
        self.donors = DonorMoments(
            self._actors, cable, self._calls, self._fetching, self._require_life
        )
        self.tell: Callable[[], None] | None = None  # on another host: notifies the first one

    def join(self, event: Join) -> Granted | Refused:
        """Join, and remember the seats of all islands and the life that was granted.

        Errors: `Relieved` if a spare is this island by now.
        """
        if self._relievable and (now := self.role(warm=False)) != event.island:
            raise Relieved(f"a spare is {event.island} now; {self._seat} is {now or 'a spare'}")
        arguments = event, source_sha256(), self._seat, self._code
        answer, self._others = self._calls.insist(SYNCER, "join", *arguments)
        self._joining = answer if isinstance(answer, Granted) else None
        return answer

    def _require_life(self) -> None:
        """Send a sign of life for a joining learner, since data has arrived.

        Errors: `_Over` if the life that is joining is over.
        """
        if not self._give_sign():
            raise _Over

    def came(self) -> None:
        """Send a sign of life where the end of the life cannot be handled.

        Called when another host of the island has made progress, or when a missed version arrives.
        """
        self._give_sign()

    def _give_sign(self) -> bool:
        """Send a sign of life, unless one was sent in the last `SIGN_S` seconds.

        Return False if the life that is joining is over.
        """
        if time.monotonic() - self._signed_s < SIGN_S:
            return True
        if self.tell is not None:
            self.tell()
        if (granted := self._joining) is None:
            self._signed_s = time.monotonic()
            return True
        empty_report = Report(granted.life, Progress(0, 0, granted.leases[0]), 0.0)
        try:
            if isinstance(
                self._calls.ask(SYNCER, "report", empty_report, Vitals(math.nan), ()), Void
            ):
                return False
        except Unreachable as error:
            logging.info("%s", error)
        self._signed_s = time.monotonic()
        return True

    @property
    def ranges(self) -> Mapping[Fragment, slice] | None:
        """The range of each fragment that this host holds; None if it holds all of them whole."""
        return self._reader.ranges

    @ranges.setter
    def ranges(self, ranges: Mapping[Fragment, slice] | None) -> None:
        self._reader.ranges = ranges

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer | Void:
        """Report progress and adoptions to the syncer; the learner's joining ends with this."""
        self._joining = None  # the learner now reports for itself
        told = self._border.vitals(vitals)
        message = self._border.passes(Leaving.REPORT, (event, told, tuple(adopted)))
        return self._calls.ask(SYNCER, "report", *message)

    def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        """Ask the syncer for more data."""
        return self._calls.ask(SYNCER, "lease", self._border.passes(Leaving.REPORT, event))

    def left(self, event: Left) -> None:
        """Notify the syncer that the life has ended for good."""
        self._calls.ask(SYNCER, "left", self._border.passes(Leaving.REPORT, event))

    def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]] | None:
        """Return the public fragments, or this host's ranges of them.

        Return None if the life that is joining ends before they have arrived.
        """
        granted = self._joining
        least = {} if granted is None else {p: granted.versions[p] for p in fragments}
        try:
            return self._reader.whole(fragments, least, self._require_life)
        except _Over:
            logging.info("this life was over before it had the model")
            return None

    def mean_moments(self, fragments: Sequence[Fragment]) -> dict[Fragment, Payload] | None:
        """Return the mean first moments of fragments that have one; None if the life is over."""
        try:
            return self._reader.mean_moments(fragments, self._require_life)
        except _Over:
            logging.info("this life was over before it had the moments")
            return None

    def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Sent] | tuple[Version, Flat]:
        """Ask the shard once for a missed version; a learner that still needs it asks again."""
        return self._reader.missed(p, older, newer, self.came)

    def moments(self, donor: Life) -> list[NDArray[Any]] | None:
        """Return this host's share of each leaf of a donor's moments; None if the donor has none.

        A donor that makes no more progress, or answers with an error, is given up.

        Errors: `Unreachable`; `Malformed`.
        """
        name = island_actor(self._others.get(donor.island, seat_of(donor.island)))
        try:
            return self.donors.moments(name, donor)
        except _Over as error:
            raise Unreachable("this life is over") from error

    def starting(self) -> float:
        """Ask the fleet how many seconds to wait before the start (`Superior.starting`)."""
        return self._calls.insist(FLEET, "starting", self._seat)

    def role(self, *, warm: bool) -> Island | None:
        """Ask the fleet which island this process is; None for a spare (`Superior.role`)."""
        return self._calls.insist(FLEET, "role", self._seat, warm)

    def notice(self, why: str, within_s: float, whole_node: bool) -> None:
        """Report to the fleet that this process, or its whole node, goes away in `within_s`."""
        node = ray.get_runtime_context().get_node_id() if whole_node else None
        shown = self._border.notice(why)
        self._calls.insist(FLEET, "notice", self._seat, shown, within_s, node)

    def broke(self, failure: Failure | None, words: str) -> None:
        """Report a failure to the syncer if there is one, and the traceback to the fleet."""
        try:
            if failure is not None:
                self._calls.ask(SYNCER, "broke", self._seat, failure, timeout_s=LAST_WORDS_S)
        except (Unreachable, RayError) as error:
            logging.warning("the failure could not be reported to the syncer: %s", error)
        self._calls.ask(FLEET, "broke", self._seat, words)
