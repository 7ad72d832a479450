"""The first host's side of a multi-host island: orders to the other hosts, and their progress."""

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
    """A version that some hosts could put in place."""

    means: list[bool] = field(default_factory=list[bool])
    """Whether each of these hosts has the mean of first moments."""
    offer: Offer | None = None
    """The arrays of this host, once it is one of them."""


def _no_life(p: Fragment, version: Version, offer: Offer) -> None:
    """Do nothing: no life has begun."""


class Lead(Generic[OrderType]):
    """The orders to the other hosts, in order, and the waiting for what all must have."""

    def __init__(self, send: Callable[[OrderType | CatchUp], None], others: int) -> None:
        """Create it; `send`: to each of the `others`, without waiting until they have done it."""
        self._send, self._others = send, others
        self._changed = threading.Condition()
        self._fetched: list[Mapping[Fragment, Version]] = []
        self._coming = False  # whether something has come since this was last reported
        self.came: Callable[[], None] | None = None
        """A callback for when something has come to another host, while this host waits."""
        self._life: Life | None = None
        self._placed: dict[Fragment, dict[Version, _Placing]] = {}
        self._tell: Tell = _no_life

    def tell(self, order: OrderType | CatchUp) -> None:
        """Send an order to the other hosts.

        Errors: `HostLost` if one of them is gone.
        """
        try:
            self._send(order)
        except OSError as error:
            raise HostLost(f"a host of this island cannot be reached: {error}") from error

    def heard(self, word: Word) -> None:
        """Handle a message of another host."""
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
        """Wait until all other hosts have reported their versions, and return these.

        If one of them is gone this process ends, and with it the wait.
        """
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
        """Begin a life.

        `tell`: called with a version and this host's arrays of it, once all hosts could put it in
        place. The mean of first moments is included only if all hosts have it, too.
        """
        with self._changed:
            self._life, self._placed, self._tell = life, {}, tell

    def placed(self, life: Life, p: Fragment, version: Version, offer: Offer) -> None:
        """Record that this host could put a version in place; notify it if all others can, too."""
        self._place(life, p, version, mean=offer.mean is not None, offer=offer)

    def _place(
        self, life: Life, p: Fragment, version: Version, *, mean: bool, offer: Offer | None = None
    ) -> None:
        with self._changed:
            if life != self._life:
                return  # a late message of a life that is over
            placings = self._placed.setdefault(p, {})
            placing = placings.setdefault(version, _Placing())
            placing.means.append(mean)
            placing.offer = placing.offer if offer is None else offer
            if len(placing.means) <= self._others or placing.offer is None:
                return
            # Some host may have missed the older ones, and will never get them.
            self._placed[p] = {v: each for v, each in placings.items() if v > version}
            found, tell = placing.offer, self._tell
            if not all(placing.means):
                found = found._replace(mean=None)
        tell(p, version, found)


def agreed(
    lead: Lead[OrderType], public: Mapping[Fragment, Public], downlink: Downlink, start: OrderType
) -> dict[Fragment, Public]:
    """Have all hosts take the same versions: the newest that any of them has fetched.

    Then they get the order `start`.

    Errors: `HostLost`.
    """
    own_public = dict(public)
    while True:
        fetched = [*lead.fetched(), {p: version for p, (version, _) in own_public.items()}]
        newest = {p: max(versions[p] for versions in fetched) for p in own_public}
        if all(versions == newest for versions in fetched):
            lead.tell(start)
            return own_public
        lead.tell(CatchUp(newest))
        for p, version in newest.items():
            if version > own_public[p][0]:
                newer = downlink.follow(Publication(p, version, version, ()), None)
                assert newer is not None, "only what is behind catches up"
                own_public[p] = newer
