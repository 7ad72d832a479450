"""The first host's end of an island of several: tells the others, and knows what they have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from coordinator.errors import HostLost
from coordinator.protocol import Fragment, Life, Publication, Version
from islands.exchange import Downlink, Public
from islands.hosts.orders import CatchUp, Coming, Fetched, Placed, Word
from islands.thread_tasks import Offer

OrderType = TypeVar("OrderType")
Tell = Callable[[Fragment, Version, Offer], None]


@dataclass(slots=True)
class _Placing:
    """A version that some hosts could put in place: whether each has the mean of first moments,
    and the arrays of this host, once it is one of them."""

    means: list[bool] = field(default_factory=list[bool])
    offer: Offer | None = None


def _nobody(p: Fragment, version: Version, offer: Offer) -> None:
    """Do nothing: no life has begun."""


class Lead(Generic[OrderType]):
    """Orders to the other hosts, in order; and what is to be waited for until all have it."""

    def __init__(self, send: Callable[[OrderType | CatchUp], None], others: int) -> None:
        """`send`: to each of the `others`, without waiting for what they do."""
        self._send, self._others = send, others
        self._changed = threading.Condition()
        self._fetched: list[Mapping[Fragment, Version]] = []
        self._coming = False  # has something come since that was said?
        self.came: Callable[[], None] | None = None
        """Called while this host waits for others, when something has come to one of them."""
        self._life: Life | None = None
        self._placed: dict[Fragment, dict[Version, _Placing]] = {}
        self._tell: Tell = _nobody

    def tell(self, order: OrderType | CatchUp) -> None:
        """Errors: `HostLost` if one of them is gone."""
        try:
            self._send(order)
        except OSError as error:
            raise HostLost(f"a host of this island cannot be told anything: {error}") from error

    def heard(self, word: Word) -> None:
        """What another host says."""
        match word:
            case Fetched(versions):
                with self._changed:
                    self._fetched.append(versions)
                    self._changed.notify_all()
            case Placed(life, p, version, mean):
                self._place(life, p, version, mean=mean)
            case Coming():
                with self._changed:
                    self._coming = True
                    self._changed.notify_all()

    def fetched(self) -> Sequence[Mapping[Fragment, Version]]:
        """Wait until all others have said which versions they have. If one is gone this process
        ends, and nobody waits."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self._fetched) == self._others or self._coming)
                self._coming = False
                if len(self._fetched) == self._others:
                    found, self._fetched = self._fetched, []
                    return found
            if self.came is not None:  # without the lock: it may take long
                self.came()

    def begin(self, life: Life, tell: Tell) -> None:
        """Begin a life. `tell`: is called with a version and this host's arrays of it once all
        hosts could put it in place; with the mean of first moments that came with it only if all
        have that, too."""
        with self._changed:
            self._life, self._placed, self._tell = life, {}, tell

    def placed(self, life: Life, p: Fragment, version: Version, offer: Offer) -> None:
        """Take in that this host could put a version in place. If all others can, tell so."""
        self._place(life, p, version, mean=offer.mean is not None, offer=offer)

    def _place(
        self, life: Life, p: Fragment, version: Version, *, mean: bool, offer: Offer | None = None
    ) -> None:
        with self._changed:
            if life != self._life:
                return  # it comes late, of a life that is over: nothing is placed in this one
            placings = self._placed.setdefault(p, {})
            placing = placings.setdefault(version, _Placing())
            placing.means.append(mean)
            placing.offer = placing.offer if offer is None else offer
            if len(placing.means) <= self._others or placing.offer is None:
                return
            # of older ones some host may not have heard, nor ever will
            self._placed[p] = {v: each for v, each in placings.items() if v > version}
            found, tell = placing.offer, self._tell
            if not all(placing.means):
                found = found._replace(mean=None)
        tell(p, version, found)


def agreed(
    lead: Lead[OrderType], public: Mapping[Fragment, Public], downlink: Downlink, start: OrderType
) -> dict[Fragment, Public]:
    """Have all hosts take the same versions: the newest that any of them has fetched. `start` is
    told them then.

    Errors: `HostLost`.
    """
    mine = dict(public)
    while True:
        known = [*lead.fetched(), {p: version for p, (version, _) in mine.items()}]
        newest = {p: max(versions[p] for versions in known) for p in mine}
        if all(versions == newest for versions in known):
            lead.tell(start)
            return mine
        lead.tell(CatchUp(newest))
        for p, version in newest.items():
            if version > mine[p][0]:
                found = downlink.follow(Publication(p, version, version, ()), None)
                assert found is not None, "only what is behind catches up"
                mine[p] = found
