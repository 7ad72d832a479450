"""One life on a host that is not the first: what others may ask of it, shared by its threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

from coordinator.parts import Part
from coordinator.protocol import ContributionId, Fragment, Known, Life, Version
from islands.catch_up import catch_up
from islands.exchange import Downlink, FragmentSnapshot, Missed, Public, Uplink
from islands.link import Link
from islands.thread_tasks import Offer

log = logging.getLogger("archipelago.follower")
SNAPSHOTS = 2
"""Snapshots of each fragment that are kept, since a shard may still ask for them."""


class HostLife:
    """The exchange of one life: both sides of its wire, and arrays held for other processes.

    The thread of orders adds arrays that this host has cut out, copied and adopted; threads of
    other processes' calls wait for it. Each life has an object of its own.
    """

    def __init__(
        self, life: Life, uplink: Uplink, link: Link, public: Mapping[Fragment, Public], leaves: int
    ) -> None:
        """Create it; `link`: for this host's ranges. `leaves`: number of leaves of the moments."""
        self.life, self.uplink, self._leaves = life, uplink, leaves
        self._changed = threading.Condition()
        self._over = threading.Event()
        self.downlink = Downlink(public, partial(_missed, link, self._over))
        self._snapshots: dict[Fragment, list[FragmentSnapshot]] = {}
        self._offers: dict[tuple[Fragment, Version], Offer] = {}
        # moments for another island, and the number of their donation
        self._copied: tuple[int, list[NDArray[Any]]] = 0, []

    def end(self) -> None:
        """End this life, and release all waiting threads."""
        with self._changed:
            self._over.set()
            self._snapshots, self._offers, self._copied = {}, {}, (0, [])
            self._changed.notify_all()

    # --- the thread of orders ---------------------------------------------------------------------

    def hold(self, p: Fragment, snapshot: FragmentSnapshot) -> None:
        """Hold a fragment that was cut out, for a hand-in."""
        with self._changed:
            self._snapshots[p] = [*self._snapshots.get(p, []), snapshot][-SNAPSHOTS:]
            self._changed.notify_all()

    def copy(self, donation: int, moment: NDArray[Any]) -> None:
        """Hold a copy of one more leaf of the moments."""
        with self._changed:
            number, copied = self._copied
            self._copied = donation, [*(copied if number == donation else ()), moment]
            self._changed.notify_all()

    def offered(self, p: Fragment, version: Version) -> Offer | None:
        """Return the arrays of a version that can be put in place; None if they are not here."""
        with self._changed:
            return self._offers.get((p, version))

    def adopted(self, p: Fragment, version: Version) -> None:
        """Drop the arrays of this version, which is in place, and of earlier ones."""
        with self._changed:
            self._offers = {
                key: each for key, each in self._offers.items() if key[0] != p or key[1] > version
            }

    # --- called by others -------------------------------------------------------------------------

    def offer(self, p: Fragment, version: Version, offer: Offer) -> bool:
        """Hold the arrays of a version; return whether this life continues."""
        with self._changed:
            if self._over.is_set():
                return False
            self._offers[p, version] = offer
            return True

    def part(self, contribution: ContributionId, known: Known, own: slice) -> Part | str | None:
        """Return this host's part, the range `own`, of a contribution of the first host.

        The call waits for the order to cut it out. It returns None if this life is over, and the
        reason if the part is no longer held.
        """
        p = contribution.fragment
        with self._changed:
            self._changed.wait_for(lambda: self._over.is_set() or self._has(contribution))
            if self._over.is_set():
                return None
            found = [each for each in self._snapshots[p] if each.word.contribution == contribution]
        if not found:
            return f"a host has no part of {contribution} any more"
        self.uplink.hear(p, known)
        facts, sent = self.uplink.encode(p, found[-1])
        return Part(facts, own.start, own.stop, sent)

    def _has(self, contribution: ContributionId) -> bool:
        """Return whether the part is or was here; the caller holds the lock."""
        held = self._snapshots.get(contribution.fragment, [])
        return any(each.word.progress.steps >= contribution.to_step for each in held)

    def moments(self, donation: int) -> list[NDArray[Any]] | None:
        """Return the copies of the moments that were made under this number.

        The call waits until all leaves are copied. It returns None if this life is over, or a later
        donation has begun because the first host has abandoned this one.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._over.is_set() or self._copied[0] > donation or self._has_copied(donation)
                )
            )
            if self._over.is_set() or not self._has_copied(donation):
                return None
            found, self._copied = self._copied[1], (donation, [])
            return found

    def _has_copied(self, donation: int) -> bool:
        """Return whether all leaves are copied under this number; the caller holds the lock."""
        number, copied = self._copied
        return number == donation and len(copied) == self._leaves


def _missed(
    link: Link, over: threading.Event, p: Fragment, older: Version, newer: Version
) -> Missed | None:
    """Ask the shard until it answers; return None if the life is over before."""
    return catch_up(link, p, older, newer, over.wait, log)
