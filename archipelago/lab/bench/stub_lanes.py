"""The lanes of a stub learner: one fetch of a fragment is under way, and the newest offer waits.

`islands.hosts.publication_lanes` is the same for a real learner, with threads.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from cluster.tasks import Tasks
from coordinator.codec import Payload
from coordinator.protocol import Fragment, Publication

Follow = Callable[[Publication, Payload | None], Coroutine[Any, Any, None]]
"""The adoption of one version, after the fetch of those that were missed."""


class StubLanes:
    """The lanes of all fragments of one stub learner, for one event loop."""

    def __init__(self, follow: Follow, broke: Callable[[BaseException], None]) -> None:
        """Create the lanes; `broke` receives the exceptions of `follow`."""
        self._follow, self._tasks = follow, Tasks(broke)
        self._busy = set[Fragment]()
        self._waiting: dict[Fragment, tuple[Publication, Payload | None]] = {}

    def busy(self, p: Fragment) -> bool:
        """Return whether a version of this fragment is fetched or decoded at present."""
        return p in self._busy

    def offer(self, publication: Publication, payload: Payload | None) -> None:
        """Have this version followed, after the one that is under way."""
        p = publication.fragment
        if p not in self._busy:
            self._busy.add(p)
            self._tasks.spawn(self._lane(p, publication, payload))
            return
        waiting = self._waiting.get(p)
        if waiting is None or waiting[0].version < publication.version:
            self._waiting[p] = publication, payload

    async def _lane(self, p: Fragment, publication: Publication, payload: Payload | None) -> None:
        """Follow this version of a fragment, and then what waits behind it."""
        news: tuple[Publication, Payload | None] | None = publication, payload
        try:
            while news is not None:
                await self._follow(*news)
                news = self._waiting.pop(p, None)
        finally:
            self._waiting.pop(p, None)
            self._busy.discard(p)
