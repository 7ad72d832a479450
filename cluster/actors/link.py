"""A learner's way to the syncer, the shards and the fleet: its `Link`, over Ray."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError, RayTaskError

from cluster.actors.calls import STORE_FULL
from cluster.actors.directory import AGAIN_S, Directory
from cluster.actors.handed import moments_of
from cluster.actors.inject import Cable
from cluster.failures import Failure, in_short, origin_of
from cluster.names import CALL_TIMEOUT_S, FLEET, SYNCER, Seat, island_actor, seat_of
from cluster.source import source_sha256
from coordinator.codec import Payload
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
    Refused,
    Report,
    Version,
    Vitals,
    Void,
)

DONOR_TIMEOUT_S = 10.0
"""A learner that joins waits no longer for a donor's moments."""
LAST_WORDS_S = 5.0
"""A process that breaks waits no longer for the syncer to hear of it; its death will be seen."""
PASSING = (RayActorError, *STORE_FULL)
"""What another process meets, too, and will not meet for ever."""


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
    ) -> None:
        """`holder`: the shard that has it, for each fragment. `relievable`: a spare may have taken
        its island over. `code`: what its task was made of (`user_sha256`)."""
        self._actors, self._cable, self._holder = Directory(namespace), cable, holder
        self._code = code
        self._seat, self._relievable = seat, relievable
        self._others: Mapping[Island, Seat] = {}

    def join(self, event: Join) -> Granted | Refused:
        """Errors: `Relieved` if the island is somebody else by now."""
        if self._relievable and (now := self.role(warm=False)) != event.island:
            raise Relieved(f"a spare is {event.island} now; {self._seat} is {now or 'a spare'}")
        mine = event, source_sha256(), self._seat, self._code
        answer, self._others = self._insist(SYNCER, "join", *mine)
        return answer

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer | Void:
        return self._ask(SYNCER, "report", event, vitals, adopted)

    def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        return self._ask(SYNCER, "lease", event)

    def left(self, event: Left) -> None:
        self._ask(SYNCER, "left", event)

    def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]:
        found: dict[Fragment, tuple[Version, Flat]] = {}
        for name in {self._holder[p] for p in fragments}:
            own = [p for p in fragments if self._holder[p] == name]
            found |= dict(zip(own, self._fetch(name, "whole", own), strict=True))
        return [found[p] for p in fragments]

    def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Payload] | tuple[Version, Flat]:
        return self._fetch(self._holder[p], "missed", p, older, newer)

    def _fetch(self, shard: str, method: str, *arguments: object) -> Any:
        """Ask again until the shard has a model."""
        while (found := self._insist(shard, method, *arguments)) is None:
            time.sleep(AGAIN_S)
        return found

    def moments(self, donor: Life) -> list[NDArray[Any]] | None:
        """A donor that does not answer in time, or answers with an error, is passed over.

        Errors: `Unreachable`; `Malformed`.
        """
        name = island_actor(self._others.get(donor.island, seat_of(donor.island)))
        try:
            return moments_of(self._ask(name, "moments", donor, timeout_s=DONOR_TIMEOUT_S))
        except RayError as error:  # which is the donor's affair
            origin = origin_of(error)
            why = f"{type(origin).__name__}: {in_short(str(origin))}"
            raise Unreachable(f"{donor} could not give its moments: {why}") from error

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
