"""The threads on which a host handles publications and notices of discarded contributions.

A link may be slower than the rate of new versions. Each fragment therefore has at most one thread.
Versions that are published while it is busy are joined into one publication: the newest, with all
merged contributions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from coordinator.protocol import Fragment
from islands.hosts.orders import FateNotice, News

GangNotice = News | FateNotice


class NewsThreads:
    """One thread for each fragment that has news, and one for all fates; each ends when idle."""

    def __init__(
        self, take: Callable[[GangNotice], None], broke: Callable[[BaseException], None]
    ) -> None:
        """Handle notices with `take`, which may take long; `broke` receives its exceptions."""
        self._take, self._broke = take, broke
        self._lock = threading.Lock()
        self._waiting: dict[Fragment | None, list[GangNotice]] = {}  # for each running thread

    def tell(self, notice: GangNotice) -> None:
        """Have a notice handled soon, on another thread; never block."""
        lane = notice.publication.fragment if isinstance(notice, News) else None
        with self._lock:
            if (waiting := self._waiting.get(lane)) is not None:
                self._waiting[lane] = _joined(waiting, notice)
                return
            self._waiting[lane] = [notice]
        name = "fates" if lane is None else f"news {lane}"
        threading.Thread(target=self._work, args=(lane,), name=name, daemon=True).start()

    def _work(self, lane: Fragment | None) -> None:
        try:
            while notices := self._next(lane):
                for notice in notices:
                    self._take(notice)
        except BaseException as error:  # noqa: BLE001 - which is reported
            self._broke(error)

    def _next(self, lane: Fragment | None) -> list[GangNotice]:
        """Return the notices to handle next; if there are none, the thread must end."""
        with self._lock:
            if notices := self._waiting[lane]:
                self._waiting[lane] = []
            else:
                del self._waiting[lane]
            return notices


def _joined(waiting: list[GangNotice], notice: GangNotice) -> list[GangNotice]:
    """Add a notice; of publications, only the newest of the newest life is kept."""
    if not waiting or not isinstance(notice, News):
        return [*waiting, notice]
    (before,) = waiting
    assert isinstance(before, News), "a fragment's thread has publications only"
    if before.life != notice.life:
        return [max(before, notice, key=lambda each: each.life.incarnation)]
    older, newer = sorted((before, notice), key=lambda each: each.publication.version)
    merged = (*older.publication.merged, *newer.publication.merged)
    return [News(notice.life, replace(newer.publication, merged=merged))]
