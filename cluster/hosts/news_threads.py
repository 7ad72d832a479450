"""The threads on which a host of an island hears of publications and of discarded contributions.

A link may be slower than versions come. So each fragment has one thread at most, and what is
published while that is busy becomes one publication: the newest, with all that was merged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from coordinator.protocol import Fragment
from islands.hosts.orders import Fate, News

Notice = News | Fate


class NewsThreads:
    """One thread for each fragment that has news, and one for all fates; each ends when idle."""

    def __init__(
        self, take: Callable[[Notice], None], broke: Callable[[BaseException], None]
    ) -> None:
        """`take`: may take long. `broke`: is told what it raises."""
        self._take, self._broke = take, broke
        self._lock = threading.Lock()
        self._waiting: dict[Fragment | None, list[Notice]] = {}  # of each thread that runs

    def tell(self, notice: Notice) -> None:
        """Have it taken soon; never waits."""
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
            while todo := self._next(lane):
                for notice in todo:
                    self._take(notice)
        except BaseException as error:  # noqa: BLE001 - which is told
            self._broke(error)

    def _next(self, lane: Fragment | None) -> list[Notice]:
        """What this thread takes next; if there is nothing it shall end."""
        with self._lock:
            if todo := self._waiting[lane]:
                self._waiting[lane] = []
            else:
                del self._waiting[lane]
            return todo


def _joined(waiting: list[Notice], notice: Notice) -> list[Notice]:
    """Add a notice; of publications the newest of the newest life stays."""
    if not waiting or not isinstance(notice, News):
        return [*waiting, notice]
    (before,) = waiting
    assert isinstance(before, News), "a fragment's thread has publications only"
    if before.life != notice.life:
        return [max(before, notice, key=lambda each: each.life.incarnation)]
    older, newer = sorted((before, notice), key=lambda each: each.publication.version)
    merged = (*older.publication.merged, *newer.publication.merged)
    return [News(notice.life, replace(newer.publication, merged=merged))]
