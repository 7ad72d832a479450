"""The files of a shard: the newest versions of its fragments, in the run's depot; or none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cluster.shard.arithmetic import Files
from cluster.shard.storing import StoringPace
from cluster.storage.format import Damaged
from cluster.storage.fragments import Arrays, FragmentStore
from cluster.storage.ownership import Fence
from coordinator.protocol import Fragment, Version


class DepotFiles(Files[Arrays]):
    """In the depot; nothing is written there once the run is another owner's. `pace` is told how
    long it takes."""

    def __init__(
        self,
        store: FragmentStore,
        fence: Fence,
        pace: StoringPace,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._fence, self._pace, self._now_s = store, fence, pace, now_s

    def save(self, p: Fragment, arrays: Callable[[], Arrays], *, first: bool) -> None:
        began_s = self._now_s()
        mine = arrays()  # before anything that the depot may hold up
        self._fence.check()
        self._store.save(p, mine, first)
        self._pace.stored(p, began_s, self._now_s() - began_s)

    def has(self, p: Fragment, version: Version) -> bool:
        return self._store.has(p, version)

    def load(self, p: Fragment, version: Version) -> Arrays:
        return self._store.load(p, version)

    def newest(self, p: Fragment, upto: Version) -> Arrays:
        return self._store.newest(p, upto)

    def forget_after(self, p: Fragment, version: Version) -> None:
        try:
            self._fence.check()
            self._store.forget_after(p, version)
        except OSError as error:
            logging.error("fragment %d keeps more than %s: %s", p, version, error)


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
