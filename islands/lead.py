"""The first host's end of an island of several: tells the others, and knows what they have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from coordinator.errors import HostLost
from coordinator.protocol import Fragment, Publication, Version
from islands.exchange import Downlink, Public
from islands.orders import CatchUp, Coming, Fetched, Placed, Word

Told = TypeVar("Told")


class Lead(Generic[Told]):
    """Orders to the other hosts, in order; and what is to be waited for until all have it."""

    def __init__(self, send: Callable[[Told | CatchUp], None], others: int) -> None:
        """`send`: to each of the `others`, without waiting for what they do."""
        self._send, self._others = send, others
        self._changed = threading.Condition()
        self._fetched: list[Mapping[Fragment, Version]] = []
        self._coming = False  # has something come since that was said?
        self.came: Callable[[], None] | None = None
        """Called while this host waits for others, when something has come to one of them."""
        self._placed: dict[Fragment, dict[Version, list[bool]]] = {}
        self._tell: Callable[[Fragment, Version, bool], None] | None = None

    def tell(self, order: Told | CatchUp) -> None:
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
            case Placed(p, version, mean):
                self.placed(p, version, mean=mean)
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

    def begin(self, tell: Callable[[Fragment, Version, bool], None]) -> None:
        """A life begins. `tell`: is called for a version once all hosts could put it in place; with
        True if all have the mean of first moments that came with it, too."""
        with self._changed:
            self._placed, self._tell = {}, tell

    def placed(self, p: Fragment, version: Version, *, mean: bool) -> None:
        """One host, this one or another, could put this version in place; `mean`: with the mean of
        first moments."""
        with self._changed:
            means = self._placed.setdefault(p, {})
            here = means.setdefault(version, [])
            here.append(mean)
            if len(here) <= self._others or self._tell is None:
                return
            self._placed[p] = {v: each for v, each in means.items() if v > version}
            tell = self._tell
        tell(p, version, all(here))


def agreed(
    lead: Lead[Told], public: Mapping[Fragment, Public], downlink: Downlink, start: Told
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
