"""When a shard's versions are stored, and on which thread: beside its gate and its merges.

One version at a time is written, by a thread that does nothing else. What it writes is a copy (12
bytes an element of one fragment), so that a depot which does not answer holds nobody up for long: a
version that is not stored in time goes on without being durable, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from coordinator.protocol import Fragment

log = logging.getLogger("archipelago.shard")
BYTES_AN_ELEMENT = 12
"""Of a stored version: master, momentum and public fragment."""
STORING_SHARE = 0.25
"""Of a shard's time, at most, is spent on storing if `durability.every` is left to it."""
SMALL_BYTES = 8 * 2**20
"""A fragment whose stored version is no larger is stored each time: that takes tens of
milliseconds, and no merge of it is ever lost."""
SILENCE_S, PATIENCE = 5.0, 10.0
"""A version that takes longer to store is not waited for: so long, and so many times as long as the
last one of its fragment took."""
SLOWEST_BYTES_S = 4e6
"""A depot is taken to be no slower before anything is known of it."""
LOOK_S = 0.05
T = TypeVar("T")


@dataclass(slots=True)
class StoringPace:
    """How often each fragment of a shard is stored; times in seconds of one steady clock.

    `measured`: it is so often that storing takes `STORING_SHARE` of the time at most; else somebody
    has said how often. `sizes`: elements of each of its fragments, known once it has a model.
    """

    measured: bool
    sizes: Mapping[Fragment, int] = field(default_factory=dict[Fragment, int])
    count: int = 0
    _took: dict[Fragment, tuple[float, float]] = field(
        default_factory=dict[Fragment, tuple[float, float]]
    )

    def bytes_of(self, p: Fragment) -> int:
        return BYTES_AN_ELEMENT * self.sizes[p]

    def stored(self, p: Fragment, began_s: float, took_s: float) -> None:
        self._took[p] = began_s, took_s
        self.count += 1

    def turn_of(self, p: Fragment, now_s: float) -> bool:
        """Each fragment has an equal part of the share, so that none is left out for good."""
        if not self.measured or p not in self._took or self.bytes_of(p) <= SMALL_BYTES:
            return True
        large = sum(self.bytes_of(each) > SMALL_BYTES for each in self.sizes)
        began_s, took_s = self._took[p]
        return now_s - began_s >= took_s * large / STORING_SHARE

    def limit_s(self, p: Fragment) -> float:
        """How long it may take to store a version before it is given up."""
        _, took_s = self._took.get(p, (0.0, self.bytes_of(p) / SLOWEST_BYTES_S))
        return max(SILENCE_S, PATIENCE * took_s)

    def said(self) -> str:
        """What storing costs, once all fragments have been stored."""
        seconds = sum(took_s for _, took_s in self._took.values())
        mb = sum(map(self.bytes_of, self._took)) / 1e6
        words = f"storing each fragment once takes {seconds:.2g} s for {mb:.0f} MB"
        large = [p for p in self._took if self.bytes_of(p) > SMALL_BYTES]
        if not self.measured or not large:
            return words
        slowest_s = max(self._took[p][1] for p in large) * len(large) / STORING_SHARE
        return (
            f"{words}: every version is stored where each fragment is merged once in "
            f"{slowest_s:.2g} s or more, else so many that it takes "
            f"{STORING_SHARE:.0%} of the time (durability.every)"
        )


class StoringThread:
    """Stores one version after another. Its coroutines are for one event loop."""

    def __init__(self, pace: StoringPace, now_s: Callable[[], float] = time.monotonic) -> None:
        self.pace, self._now_s = pace, now_s
        self._thread = ThreadPoolExecutor(1, "storing")
        self._writing: tuple[float, float] | None = None  # since when, and how long that may take

    async def alone(self, call: Callable[[], T]) -> T:
        """What it returns, called while nothing is being stored."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def store(self, p: Fragment, call: Callable[[Callable[[], None]], bool]) -> bool | str:
        """Whether the version is durable; False if it is not its turn to be, else why it is not.

        `call`: stores it, and says so once it has a copy of it and needs nobody else's arrays.

        Errors: its own.
        """
        if not self.pace.turn_of(p, self._now_s()):
            return False
        copied = threading.Event()
        job = self._thread.submit(self._store, p, call, copied)
        waiting = asyncio.wrap_future(job)
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=LOOK_S)
            if (late_s := self._late_s()) is None or waiting.done():
                continue
            if job.cancel() or copied.is_set():
                waiting.add_done_callback(_heard)
                return f"the depot has not answered for {late_s:.0f} s"
        return waiting.result()

    def _store(
        self, p: Fragment, call: Callable[[Callable[[], None]], bool], copied: threading.Event
    ) -> bool:
        self._writing = self._now_s(), self.pace.limit_s(p)
        try:
            return call(copied.set)
        finally:
            self._writing = None

    def _late_s(self) -> float | None:
        """For how long what is being written has been, if that is too long."""
        if (writing := self._writing) is None:
            return None
        began_s, limit_s = writing
        since_s = self._now_s() - began_s
        return since_s if since_s > limit_s else None


def _heard(waiting: asyncio.Future[bool] | Future[bool]) -> None:
    """What was given up has ended after all."""
    if not waiting.cancelled() and (error := waiting.exception()) is not None:
        log.error("a version that was given up is not stored: %s", error)
