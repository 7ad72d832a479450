"""When a shard's versions are stored, and on which thread: beside its gate and its merges.

One version at a time is written, by a thread that does nothing else. What it writes is a copy (12
bytes an element of one fragment), so that a depot which does not answer holds nobody up for long: a
version that is not stored in time goes on without being durable, and says so. The thread of a write
that was given up is left to it, and another one takes its place; nothing more is written until it
has ended, so that there is one such thread, and one such copy, at most.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

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

    def limit_of_s(self, p: Fragment, nbytes: int) -> float:
        """Return how long it may take to write so many bytes of a fragment's contributions."""
        return max(SILENCE_S, self.limit_s(p) * nbytes / self.bytes_of(p))

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


class _Hanging(NamedTuple):
    """A write that was given up, and when it began."""

    job: Future[bool]
    began_s: float


class StoringThread:
    """Stores one version after another. Its coroutines are for one event loop."""

    def __init__(self, pace: StoringPace, now_s: Callable[[], float] = time.monotonic) -> None:
        self.pace, self._now_s = pace, now_s
        self._thread = ThreadPoolExecutor(1, "storing")
        self._turn = asyncio.Lock()  # of one write, until it has ended or is given up
        self._hanging: _Hanging | None = None  # the last write that was given up

    async def alone(self, call: Callable[[], T]) -> T:
        """Return what this returns, called while nothing is being stored.

        It waits for the write before it no longer than that may take: one that was given up has a
        copy of what it writes, and goes on beside it.
        """
        async with self._turn:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def store(self, p: Fragment, call: Callable[[Callable[[], None]], bool]) -> bool | str:
        """Whether the version is durable; False if it is not its turn to be, else why it is not.

        `call`: stores it, and says so once it has a copy of it and needs nobody else's arrays.

        Errors: its own.
        """
        if not self.pace.turn_of(p, self._now_s()):
            return False
        return await self._patiently(call, self.pace.limit_s(p))

    async def keep(self, p: Fragment, nbytes: int, call: Callable[[], None]) -> str | None:
        """Write so many bytes of a fragment's contributions. Returns why they are not durable; None
        if they are.

        `call`: writes them, and needs nobody else's arrays.

        Errors: its own.
        """

        def keep(copied: Callable[[], None]) -> bool:
            copied()
            call()
            return True

        outcome = await self._patiently(keep, self.pace.limit_of_s(p, nbytes))
        return outcome if isinstance(outcome, str) else None

    async def _patiently(
        self, call: Callable[[Callable[[], None]], bool], limit_s: float
    ) -> bool | str:
        """Return what this returns; or why it was given up, or not even begun."""
        async with self._turn:
            began_s = self._now_s()
            if self._hanging is not None and not self._hanging.job.done():
                return _no_answer(began_s - self._hanging.began_s)
            copied = threading.Event()
            job = self._thread.submit(call, copied.set)
            waiting = asyncio.wrap_future(job)
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=LOOK_S)
                late = (took_s := self._now_s() - began_s) > limit_s
                if late and copied.is_set() and not waiting.done():
                    self._hanging = _Hanging(job, began_s)
                    waiting.add_done_callback(_heard)
                    self._thread.shutdown(wait=False)
                    self._thread = ThreadPoolExecutor(1, "storing")
                    return _no_answer(took_s)
            return waiting.result()


def _no_answer(for_s: float) -> str:
    return f"the depot has not answered for {for_s:.0f} s"


def _heard(waiting: asyncio.Future[bool]) -> None:
    """What was given up has ended after all."""
    if not waiting.cancelled() and (error := waiting.exception()) is not None:
        log.error("a version that was given up is not stored: %s", error)
