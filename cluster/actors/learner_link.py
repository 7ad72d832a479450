"""A learner's way to the syncer, the shards and the fleet: its `Link`, over Ray."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError, RayTaskError

from cluster.actors.call_errors import STORE_FULL
from cluster.actors.directory import AGAIN_S, Directory
from cluster.actors.fault_injection import Cable
from cluster.actors.message_checks import moments_of, pieces_of
from cluster.actors.object_store.fragment_reader import FragmentReader
from cluster.actors.object_store.moment_pieces import Piece, joined
from cluster.actors.object_store.pull import Fetching, Lot
from cluster.failures import Failure, in_short, origin_of
from cluster.names import CALL_TIMEOUT_S, FLEET, SYNCER, Seat, island_actor, seat_of
from cluster.source import source_sha256
from coordinator.codec import Payload, Sent
from coordinator.errors import Relieved, Unreachable
from coordinator.fragments import Flat
from coordinator.parts import Split
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
DONOR_FLOOR_S, DONOR_STEPS = 10.0, 30.0
"""A donor that has copied nothing more for so long and so many of its steps is passed over."""
LAST_WORDS_S = 5.0
"""A process that breaks waits no longer for the syncer to hear of it; its death will be seen."""
PASSING = (RayActorError, *STORE_FULL)
"""What another process meets, too, and will not meet for ever."""


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
        self._actors, self._cable = Directory(namespace), cable
        self._code = code
        self._seat, self._relievable = seat, relievable
        self._others: Mapping[Island, Seat] = {}
        self._joining: Granted | None = None  # until it has all that it needs
        self._said_s = -math.inf
        self._fetching = Fetching(cable, get=get)
        self._reader = FragmentReader(self._insist, self._ask, self._fetching, holder)
        self.tell: Callable[[], None] | None = None  # another host that something has come
        self.split = Split()  # of this island
        self.share: Callable[[Sequence[Piece], int], list[ray.ObjectRef]] | None = None

    def join(self, event: Join) -> Granted | Refused:
        """Errors: `Relieved` if the island is somebody else by now."""
        if self._relievable and (now := self.role(warm=False)) != event.island:
            raise Relieved(f"a spare is {event.island} now; {self._seat} is {now or 'a spare'}")
        mine = event, source_sha256(), self._seat, self._code
        answer, self._others = self._insist(SYNCER, "join", *mine)
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
            if isinstance(self._ask(SYNCER, "report", nothing, Vitals(math.nan), ()), Void):
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
        return self._ask(SYNCER, "report", event, vitals, adopted)

    def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        return self._ask(SYNCER, "lease", event)

    def left(self, event: Left) -> None:
        self._ask(SYNCER, "left", event)

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
            return self._donated(name, donor)
        except _Over as error:
            raise Unreachable("this life is over") from error
        except RayError as error:  # which is the donor's affair
            origin = origin_of(error)
            why = f"{type(origin).__name__}: {in_short(str(origin))}"
            raise Unreachable(f"{donor} could not give its moments: {why}") from error

    def _donated(self, name: str, donor: Life) -> list[NDArray[Any]] | None:
        """Wait for as long as the donor comes further, and pull what it has put in its store."""
        if not self._cable.passes(DONOR_FLOOR_S):
            raise Unreachable(f"the {name} cannot be heard: the cable is cut")
        call = self._actors[name].moments.remote(donor, self.split)
        copied, further_s = -1, time.monotonic()
        while not ray.wait([call], timeout=SIGN_S)[0]:
            count, step_s = self._ask(name, "copied", donor, timeout_s=DONOR_FLOOR_S)
            if count > copied:
                copied, further_s = count, time.monotonic()
                self._goes_on()
            elif time.monotonic() - further_s > max(DONOR_FLOOR_S, DONOR_STEPS * step_s):
                raise Unreachable(f"{donor} has copied {count} of its moments and no more")
        if (pieces := pieces_of(ray.get(call))) is None:
            return None
        leaves = 1 + max((each.leaf for each in pieces), default=-1)
        others = None if self.share is None else self.share(pieces, leaves)
        mine = self.pulled([each for each in pieces if each.host == 0], leaves)
        if others is not None:
            self._all_have(others)
        return mine

    def _all_have(self, others: list[ray.ObjectRef]) -> None:
        """Wait until all other hosts of this island have their share of a donor's moments.

        Errors: `Unreachable` if one has none.
        """
        while ray.wait(others, num_returns=len(others), timeout=SIGN_S)[1]:
            self._goes_on()
        if whys := [why for why in ray.get(others) if why is not None]:
            raise Unreachable(f"another host of this island has none: {whys[0]}")

    def pulled(self, pieces: Sequence[Piece], leaves: int) -> list[NDArray[Any]]:
        """This host's share of each of so many leaves of a donor's moments.

        Errors: `Unreachable`, `Malformed`.
        """
        lots = [Lot(each.reference, each.nbytes) for each in pieces]
        found = self._fetching.pull(lots, self._goes_on)
        return joined(pieces, moments_of(found), leaves)

    def starting(self) -> float:
        return self._insist(FLEET, "starting", self._seat)

    def role(self, *, warm: bool) -> Island | None:
        return self._insist(FLEET, "role", self._seat, warm)

    def broke(self, failure: Failure | None, words: str) -> None:
        try:
            if failure is not None:
                self._ask(SYNCER, "broke", self._seat, failure, timeout_s=LAST_WORDS_S)
        except (Unreachable, RayError) as error:
            logging.warning("the syncer is not told: %s", error)
        self._ask(FLEET, "broke", self._seat, words)

    def _insist(self, actor: str, method: str, *arguments: object) -> Any:
        while True:
            try:
                return self._ask(actor, method, *arguments)
            except Unreachable as error:
                logging.info("%s; trying again", error)
                time.sleep(AGAIN_S)

    def _ask(
        self, actor: str, method: str, *arguments: object, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        if not self._cable.passes(timeout_s):
            raise Unreachable(f"the {actor} cannot be heard: the cable is cut")
        try:
            call = getattr(self._actors[actor], method)
            return ray.get(call.remote(*arguments), timeout=timeout_s)
        except RayError as error:
            origin = origin_of(error)
            if isinstance(error, RayTaskError) and not isinstance(origin, PASSING):
                raise
            self._actors.forget(actor)
            raise Unreachable(f"the {actor} cannot be heard: {type(origin).__name__}") from error
