"""The writing of contributions to a merge: a thread for each depot, and none waits for another.

The depot of a region may be far away, and may hang. Its thread then waits alone: versions and the
contributions of all other regions are stored as before. Versions have a thread of their own.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Sequence

from cluster.shard.files import keep_contributions
from cluster.shard.storing_thread import StoringPace, StoringThread
from cluster.storage.contributions import ContributionStore
from cluster.storage.ownership import Fence
from cluster.tasks import Tasks
from coordinator.codec import Sent
from coordinator.protocol import Contribution, Fragment, Version

log = logging.getLogger("archipelago.shard")
KeptPayload = tuple[Contribution, Sent]
"""A contribution, as it was encoded."""


class ContributionWriter:
    """The writer of one shard's merged contributions; its coroutines belong to one event loop."""

    def __init__(
        self,
        store: ContributionStore,
        fence: Fence,
        pace: StoringPace,
        unheard: Callable[[BaseException], None],
    ) -> None:
        """Start no thread yet.

        `pace`: that of versions, from which the timeouts follow. `unheard`: receives exceptions of
        jobs that are never awaited.
        """
        self._store, self._fence = store, fence
        self._threads = {name: StoringThread(pace) for name in store.depots}
        self._tasks = Tasks(unheard)

    async def keep(self, p: Fragment, version: Version, kept: Iterable[KeptPayload]) -> None:
        """Write the contributions to a merge of a fragment, each in its own depot.

        All depots are written at the same time, each with the timeout of its thread. If one does
        not answer, this logs it and returns.

        `version`: the one that is merged.

        Errors: `RunFailed` if the run has another owner by now.
        """
        by_depot = dict[str, list[KeptPayload]]()
        for each in kept:
            by_depot.setdefault(self._store.depot_of(each[0].id), []).append(each)
        await asyncio.gather(*(self._write(p, version, *each) for each in by_depot.items()))

    async def _write(
        self, p: Fragment, version: Version, depot: str, kept: Sequence[KeptPayload]
    ) -> None:
        write = functools.partial(keep_contributions, self._store, self._fence, kept)
        nbytes = sum(payload.nbytes for _, payload in kept)
        if (why := await self._threads[depot].keep(p, nbytes, write)) is not None:
            log.error("contributions to %s are not kept in %s: %s", version, depot, why)

    def tidy(self, fragments: Sequence[Fragment]) -> None:
        """Have the threads delete temporary files of these fragments, without waiting for them."""
        for depot in self._threads:
            self._tasks.spawn(self._tidy(depot, fragments))

    async def _tidy(self, depot: str, fragments: Sequence[Fragment]) -> None:
        def tidy() -> None:
            for p in fragments:
                self._store.tidy(depot, p)

        if (why := await self._threads[depot].keep(fragments[0], 0, tidy)) is not None:
            log.warning("temporary files in %s stay: %s", depot, why)
