"""The files of a shard: the newest versions of its fragments in the run's depot, or no files."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

from cluster.shard.arithmetic import Files
from cluster.shard.storing_thread import StoringPace
from cluster.storage.contributions import ContributionStore
from cluster.storage.format import Damaged
from cluster.storage.fragments import Arrays, FragmentStore
from cluster.storage.ownership import Fence
from coordinator.codec import Sent
from coordinator.protocol import Contribution, Fragment, Version

log = logging.getLogger("archipelago.shard")


class DepotFiles(Files[Arrays]):
    """The files in the run's depot; nothing is written once another owner has the run.

    `pace` records how long each version took to store. A write that was given up may end after the
    fragment has gone back to an earlier version; the file that it wrote is then deleted again.
    """

    def __init__(
        self,
        store: FragmentStore,
        fence: Fence,
        pace: StoringPace,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._fence, self._pace, self._now_s = store, fence, pace, now_s
        self._returns = Counter[Fragment]()  # counts how often each fragment has gone back

    def save(self, p: Fragment, arrays: Callable[[], Arrays], *, first: bool) -> None:
        """Store a copy of the arrays, and record in `pace` how long it took.

        Errors: `OSError` if the depot refuses it; `RunFailed` if another owner has the run.
        """
        began_s, return_count = self._now_s(), self._returns[p]
        arrays_copy = arrays()  # copy first: a slow depot may block everything below
        self._fence.check()
        self._store.save(p, arrays_copy, first)
        if return_count != self._returns[p]:
            log.warning("fragment %d went back before %s was stored", p, arrays_copy.version)
            self._store.forget(p, arrays_copy.version)
            return
        self._pace.stored(p, began_s, self._now_s() - began_s)

    def has(self, p: Fragment, version: Version) -> bool:
        """Return whether this version is stored."""
        return self._store.has(p, version)

    def load(self, p: Fragment, version: Version) -> Arrays:
        """Read one stored version.

        Errors: `Damaged`; `OSError`.
        """
        return self._store.load(p, version)

    def newest(self, p: Fragment, upto: Version) -> Arrays:
        """Return the newest good version up to `upto`, and record in `pace` how long it took.

        Errors: `Damaged` if there is none.
        """
        began_s = self._now_s()
        found = self._store.newest(p, upto)
        self._pace.read(p, self._now_s() - began_s)
        return found

    def forget_after(self, p: Fragment, version: Version) -> None:
        """Delete all later versions; log an error if some cannot be deleted."""
        self._returns[p] += 1  # count first: a write that ends later then deletes its own file
        try:
            self._fence.check()
            self._store.forget_after(p, version)
        except OSError as error:
            logging.error("fragment %d keeps more than %s: %s", p, version, error)


def keep_contributions(
    store: ContributionStore, fence: Fence, kept: Iterable[tuple[Contribution, Sent]]
) -> None:
    """Write contributions that are about to be merged, for replay.

    If one cannot be written, this logs it, replay reports it missing, and the run continues.

    Errors: `RunFailed` if another owner has the run.
    """
    fence.check()
    for contribution, payload in kept:
        try:
            store.save(contribution.id, payload, contribution.fingerprint)
        except OSError as error:
            log.error("%s is not kept: %s", contribution.id, error)


class NoFiles(Files[Arrays]):
    """A shard without a depot: nothing is stored, and nothing can be loaded again."""

    def save(self, p: Fragment, arrays: Callable[[], Arrays], *, first: bool) -> None:
        """Do nothing: there is no depot."""

    def has(self, p: Fragment, version: Version) -> bool:
        """Return False: no version is stored."""
        return False

    def load(self, p: Fragment, version: Version) -> Arrays:
        """Refuse to load.

        Errors: `Damaged`, always.
        """
        raise Damaged(f"{version} of fragment {p} is stored nowhere")

    def newest(self, p: Fragment, upto: Version) -> Arrays:
        """Refuse to load.

        Errors: `Damaged`, always.
        """
        raise Damaged(f"fragment {p} is stored nowhere")

    def forget_after(self, p: Fragment, version: Version) -> None:
        """Do nothing: no version is stored."""
