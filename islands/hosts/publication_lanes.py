"""The adoption of published versions, on one lane (a queue and a thread) for each fragment.

A version whose delta fits is adopted on the caller's thread. If one was missed, a thread of this
fragment asks the shard, which may be away for long, and the caller continues. So the fragments of
one shard never wait for another shard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from coordinator.codec import Sent
from coordinator.protocol import Fragment, Publication
from islands.exchange import Downlink, Public

PublicationNews = tuple[Publication, Sent | None]
"""A publication and its delta; None if the delta did not come along."""


class Following:
    """One lane for each fragment: at most one thread follows it, and the newest offer waits."""

    def __init__(
        self,
        downlink: Downlink,
        came: Callable[[Publication, Public], None],
        broke: Callable[[BaseException], None],
    ) -> None:
        """Create the lanes.

        `came`: called with each version that was followed, not always in order. `broke`: called
        with an exception of a thread that asks for missed deltas.
        """
        self._downlink, self._came, self._broke = downlink, came, broke
        self._lock = threading.Lock()
        self._busy: set[Fragment] = set()
        self._asking: set[Fragment] = set()
        self._waiting: dict[Fragment, PublicationNews] = {}

    def catching_up(self, p: Fragment) -> bool:
        """Return whether missed versions of this fragment are fetched at present.

        A later version waits for it, and finds its own delta among the missed ones. So its payload
        need not be fetched: over a thin link every delta would be sent twice, and a learner that is
        behind would never catch up.
        """
        with self._lock:
            return p in self._asking

    def offer(self, publication: Publication, payload: Sent | None) -> None:
        """Adopt a version; return at once if that has to wait for a shard, or for another thread.

        Errors: the errors of the arrays and of `came`, unless another thread adopts it.
        """
        p = publication.fragment
        with self._lock:
            if p in self._busy:  # only the newest waiting version is needed
                waiting = self._waiting.get(p)
                if waiting is None or waiting[0].version < publication.version:
                    self._waiting[p] = publication, payload
                return
            self._busy.add(p)
        self._take_in(p, (publication, payload))

    def _take_in(self, p: Fragment, news: PublicationNews | None) -> None:
        """Adopt what fits, on this thread; leave the rest to a thread of the fragment."""
        while news is not None:
            if self._downlink.lacks(*news):
                lane = threading.Thread(
                    target=self._ask, args=(p, news), name=f"follow {p}", daemon=True
                )
                lane.start()
                return
            news = self._follow(p, *news)

    def _ask(self, p: Fragment, news: PublicationNews | None) -> None:
        try:
            while news is not None:
                news = self._follow(p, *news)
        except BaseException as error:  # noqa: BLE001 - the learner raises it
            self._broke(error)

    def _follow(
        self, p: Fragment, publication: Publication, payload: Sent | None
    ) -> PublicationNews | None:
        """Follow one version; return the version that waits behind it.

        `came` takes long, too. If nothing waits, the lane is free meanwhile.
        """
        held = True
        try:
            found = self._fetched(p, publication, payload)
            held = (news := self._next(p)) is not None
            if found is not None:
                self._came(publication, found)
        except BaseException:
            if held:
                self._leave(p)
            raise
        return news

    def _fetched(
        self, p: Fragment, publication: Publication, payload: Sent | None
    ) -> Public | None:
        """Return the public fragment of a version, after what was missed; None as in `Downlink`."""
        if self._downlink.lacks(publication, payload):
            with self._lock:
                self._asking.add(p)
        try:
            return self._downlink.follow(publication, payload)
        finally:
            with self._lock:
                self._asking.discard(p)

    def _next(self, p: Fragment) -> PublicationNews | None:
        """Return the waiting version; None if there is none, and then the lane is free."""
        with self._lock:
            if (news := self._waiting.pop(p, None)) is None:
                self._busy.discard(p)
            return news

    def _leave(self, p: Fragment) -> None:
        with self._lock:
            self._waiting.pop(p, None)
            self._busy.discard(p)
