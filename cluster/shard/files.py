"""The files of a shard: the newest versions of its fragments, in the run's depot; or none."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

from cluster.shard.arithmetic import Files
from cluster.shard.storing_thread import StoringPace
from cluster.storage.contributions import save_contribution
from cluster.storage.depot import Depot
from cluster.storage.format import Damaged
from cluster.storage.fragments import Arrays, FragmentStore
from cluster.storage.ownership import Fence
from coordinator.codec import Sent
from coordinator.protocol import Contribution, Fragment, Version

log = logging.getLogger("archipelago.shard")


class DepotFiles(Files[Arrays]):
    """The files in the run's depot; nothing is written there once the run is another owner's.

    `pace` is told how long storing takes. A write that was given up may end after the fragment has
    gone back to an earlier version: what it wrote is deleted again then.
    """

    def __init__(
        self,
        store: FragmentStore,
        fence: Fence,
        pace: StoringPace,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._fence, self._pace, self._now_s = store, fence, pace, now_s
        self._returns = Counter[Fragment]()  # how often each fragment has gone back

    def save(self, p: Fragment, arrays: Callable[[], Arrays], *, first: bool) -> None:
        began_s, returns = self._now_s(), self._returns[p]
        mine = arrays()  # before anything that the depot may hold up
        self._fence.check()
        self._store.save(p, mine, first)
        if returns != self._returns[p]:
            log.warning("fragment %d went back before %s was stored", p, mine.version)
            self._store.forget(p, mine.version)
            return
        self._pace.stored(p, began_s, self._now_s() - began_s)

    def has(self, p: Fragment, version: Version) -> bool:
        return self._store.has(p, version)

    def load(self, p: Fragment, version: Version) -> Arrays:
        return self._store.load(p, version)

    def newest(self, p: Fragment, upto: Version) -> Arrays:
        return self._store.newest(p, upto)

    def forget_after(self, p: Fragment, version: Version) -> None:
        self._returns[p] += 1  # first: what lands after this is looked for by its own thread
        try:
            self._fence.check()
            self._store.forget_after(p, version)
        except OSError as error:
            logging.error("fragment %d keeps more than %s: %s", p, version, error)


def keep_contributions(
    depot: Depot, fence: Fence, kept: Iterable[tuple[Contribution, Sent]]
) -> None:
    """Write what is to be merged. Replay will miss what cannot be written, and says so; the run
    need not stop.

    Errors: `RunFailed` if the run is another owner's.
    """
    fence.check()
    for said, payload in kept:
        try:
            save_contribution(depot, said.id, payload, said.fingerprint)
        except OSError as error:
            log.error("%s is not kept: %s", said.id, error)


class NoFiles(Files[Arrays]):
    """A shard without a depot: nothing is stored, and nothing can be had again."""

    def save(self, p: Fragment, arrays: Callable[[], Arrays], *, first: bool) -> None:
        pass

    def has(self, p: Fragment, version: Version) -> bool:
        return False

    def load(self, p: Fragment, version: Version) -> Arrays:
        raise Damaged(f"{version} of fragment {p} is stored nowhere")

    def newest(self, p: Fragment, upto: Version) -> Arrays:
        raise Damaged(f"fragment {p} is stored nowhere")

    def forget_after(self, p: Fragment, version: Version) -> None:
        pass
