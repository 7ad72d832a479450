"""The optimizer moments that a donor gives to a joining learner: waiting for them, pulling them.

A donor answers with the pieces of its moments in the object store (`object_store.moment_pieces`).
Each host of the joining island pulls its own pieces.
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
"""Seconds between two polls of whether a donor, or another host, has what was requested."""
DONOR_FLOOR_S, DONOR_STEPS = 10.0, 30.0
"""A donor without progress for this many seconds and this many of its own steps is given up."""


class DonorMoments:
    """One host's access to the moments of a donor.

    `split`: how this island is split over its devices. `share`: has each other host of this island
    pull its pieces, for a given number of leaves; None if there is no other host.
    """

    def __init__(
        self,
        actors: Directory,
        cable: Cable,
        calls: BlockingCalls,
        fetching: Fetching,
        goes_on: Callable[[], None],
    ) -> None:
        """`goes_on` is called whenever data has arrived, and may raise to give up."""
        self._actors, self._cable, self._calls = actors, cable, calls
        self._fetching, self._goes_on = fetching, goes_on
        self.split = Split()
        self.share: Callable[[Sequence[MomentPieceRef], int], list[ray.ObjectRef]] | None = None

    def moments(self, name: str, donor: Life) -> list[NDArray[Any]] | None:
        """Return this host's share of each leaf; None if the donor in the actor `name` has none.

        Errors: `Unreachable` if the donor makes no more progress or answers with an error;
        `Malformed` if its answer is; whatever `goes_on` raises.
        """
        try:
            return self._given(name, donor)
        except RayError as error:  # this is the donor's failure, not ours
            origin = origin_of(error)
            why = f"{type(origin).__name__}: {in_short(str(origin))}"
            raise Unreachable(f"{donor} could not give its moments: {why}") from error

    def _given(self, name: str, donor: Life) -> list[NDArray[Any]] | None:
        """Wait while the donor makes progress, and pull the pieces that it has put in its store."""
        if not self._cable.passes(DONOR_FLOOR_S):
            raise Unreachable(f"the {name} cannot be reached: its connection is cut")
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
        own_share = self.pulled([each for each in pieces if each.host == 0], leaves)
        if others is not None:
            self._all_have(others)
        return own_share

    def _all_have(self, others: list[ray.ObjectRef]) -> None:
        """Wait until all other hosts of this island have their share.

        Errors: `Unreachable` if one of them could not get it.
        """
        while ray.wait(others, num_returns=len(others), timeout=LOOK_S)[1]:
            self._goes_on()
        if reasons := [why for why in ray.get(others) if why is not None]:
            raise Unreachable(f"another host of this island has none: {reasons[0]}")

    def pulled(self, pieces: Sequence[MomentPieceRef], leaves: int) -> list[NDArray[Any]]:
        """Pull these pieces, and return this host's share of each leaf; `leaves` is their number.

        Errors: `Unreachable`, `Malformed`.
        """
        lots = [Lot(each.reference, each.nbytes) for each in pieces]
        found = self._fetching.pull(lots, self._goes_on)
        return joined(pieces, moments_of(found), leaves)


def _is_reference(value: object) -> bool:
    return isinstance(value, ray.ObjectRef)
