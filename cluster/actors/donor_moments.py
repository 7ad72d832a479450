"""The moments that a donor gives to a learner that joins: waiting for them, and pulling them.

A donor says in which pieces its moments lie in the object store (`object_store.moment_pieces`).
Each host of the island that joins pulls its own pieces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from cluster.actors.blocking_calls import BlockingCalls
from cluster.actors.directory import Directory
from cluster.actors.fault_injection import Cable
from cluster.actors.object_store.moment_pieces import MomentPieceRef, joined
from cluster.actors.object_store.pull import Fetching, Lot
from cluster.failures import in_short, origin_of
from coordinator.errors import Unreachable
from coordinator.message_checks import moments_of, pieces_of
from coordinator.parts import Split
from coordinator.protocol import Life

LOOK_S = 2.0
"""Between two looks at whether a donor, or another host, has what it was asked for."""
DONOR_FLOOR_S, DONOR_STEPS = 10.0, 30.0
"""A donor that has copied nothing more for so long and so many of its steps is passed over."""


class DonorMoments:
    """One host's way to the moments of a donor.

    `split`: of this island over its devices. `share`: has each other host of this island pull its
    pieces, of so many leaves; None if there is no other host.
    """

    def __init__(
        self,
        actors: Directory,
        cable: Cable,
        calls: BlockingCalls,
        fetching: Fetching,
        goes_on: Callable[[], None],
    ) -> None:
        """`goes_on`: is called when something has come, and may raise to give up."""
        self._actors, self._cable, self._calls = actors, cable, calls
        self._fetching, self._goes_on = fetching, goes_on
        self.split = Split()
        self.share: Callable[[Sequence[MomentPieceRef], int], list[ray.ObjectRef]] | None = None

    def moments(self, name: str, donor: Life) -> list[NDArray[Any]] | None:
        """Return this host's share of each leaf; None if the donor in this actor has none.

        Errors: `Unreachable` if the donor copies nothing more or answers with an error;
        `Malformed`; what `goes_on` raises.
        """
        try:
            return self._given(name, donor)
        except RayError as error:  # which is the donor's affair
            origin = origin_of(error)
            why = f"{type(origin).__name__}: {in_short(str(origin))}"
            raise Unreachable(f"{donor} could not give its moments: {why}") from error

    def _given(self, name: str, donor: Life) -> list[NDArray[Any]] | None:
        """Wait for as long as the donor comes further, and pull what it has put in its store."""
        if not self._cable.passes(DONOR_FLOOR_S):
            raise Unreachable(f"the {name} cannot be heard: the cable is cut")
        call = self._actors[name].moments.remote(donor, self.split)
        copied, further_s = -1, time.monotonic()
        while not ray.wait([call], timeout=LOOK_S)[0]:
            count, step_s = self._calls.ask(name, "copied", donor, timeout_s=DONOR_FLOOR_S)
            if count > copied:
                copied, further_s = count, time.monotonic()
                self._goes_on()
            elif time.monotonic() - further_s > max(DONOR_FLOOR_S, DONOR_STEPS * step_s):
                raise Unreachable(f"{donor} has copied {count} of its moments and no more")
        if (pieces := pieces_of(ray.get(call), MomentPieceRef, _is_reference)) is None:
            return None
        leaves = 1 + max((each.leaf for each in pieces), default=-1)
        others = None if self.share is None else self.share(pieces, leaves)
        mine = self.pulled([each for each in pieces if each.host == 0], leaves)
        if others is not None:
            self._all_have(others)
        return mine

    def _all_have(self, others: list[ray.ObjectRef]) -> None:
        """Wait until all other hosts of this island have their share.

        Errors: `Unreachable` if one has none.
        """
        while ray.wait(others, num_returns=len(others), timeout=LOOK_S)[1]:
            self._goes_on()
        if whys := [why for why in ray.get(others) if why is not None]:
            raise Unreachable(f"another host of this island has none: {whys[0]}")

    def pulled(self, pieces: Sequence[MomentPieceRef], leaves: int) -> list[NDArray[Any]]:
        """Pull these pieces, and return this host's share of each of so many leaves.

        Errors: `Unreachable`, `Malformed`.
        """
        lots = [Lot(each.reference, each.nbytes) for each in pieces]
        found = self._fetching.pull(lots, self._goes_on)
        return joined(pieces, moments_of(found), leaves)


def _is_reference(value: object) -> bool:
    return isinstance(value, ray.ObjectRef)
