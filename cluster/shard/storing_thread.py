"""The pace at which a shard stores its versions, and the thread that does it beside merges.

A thread that does nothing else writes one version at a time. It writes a copy (12 bytes an element
of one fragment), so that a depot which does not answer blocks no round for long. A version that is
not stored before its timeout is published without being durable, and an error is reported. The
thread of a write that was given up stays with that write, and a new thread replaces it. Nothing is
written until the old write has ended, so there is at most one such thread and one such copy.
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
"""Bytes of a stored version for each element: master, momentum and public fragment."""
STORING_SHARE = 0.25
"""The largest share of a shard's time that storing may take if `durability.every` is "auto"."""
SMALL_BYTES = 8 * 2**20
"""The size up to which a stored version is written every time.

That takes tens of milliseconds, and no merge of such a fragment is ever lost.
"""
SILENCE_S, PATIENCE = 5.0, 10.0
"""The timeout of storing a version: the larger of two limits.

It is `SILENCE_S` seconds, or `PATIENCE` times as long as the last version of its fragment took.
"""
FIRST_S = 120.0
"""The longest timeout of a fragment of which this process has stored no version, in seconds.

The throughput of the depot is then an estimate. If it is too high, one version is not durable; the
time of its write counts for the next one.
"""
SLOWEST_BYTES_S = 4e6
"""The throughput assumed of a depot before one is measured, bytes per second."""
FASTEST_READ_BYTES_S = 250e6
"""The largest throughput taken from a read, bytes per second; a cache may have answered it."""
LOOK_S = 0.05
"""Seconds from one look at a write under way to the next."""
T = TypeVar("T")


@dataclass(slots=True)
class StoringPace:
    """The pace at which a shard's fragments are stored; times are seconds of one steady clock."""

    measured: bool
    """Whether storing is limited to `STORING_SHARE` of the time; else every turn is taken."""
    sizes: Mapping[Fragment, int] = field(default_factory=dict[Fragment, int])
    """Elements of each of the shard's fragments, set once it has a model."""
    count: int = 0
    """Versions stored so far."""
    _took: dict[Fragment, tuple[float, float]] = field(
        default_factory=dict[Fragment, tuple[float, float]]
    )
    """The start of the last write of each fragment, and its duration, in seconds."""
    _read_s: dict[Fragment, float] = field(default_factory=dict[Fragment, float])
    """The duration of the last read of each fragment, in seconds."""

    def bytes_of(self, p: Fragment) -> int:
        """Return the bytes of a stored version of this fragment."""
        return BYTES_AN_ELEMENT * self.sizes[p]

    def stored(self, p: Fragment, began_s: float, took_s: float) -> None:
        """Note that a version has been stored, and how long that took."""
        self._took[p] = began_s, took_s
        self.count += 1

    def read(self, p: Fragment, took_s: float) -> None:
        """Note that a stored version has been read, and how long that took."""
        self._read_s[p] = took_s

    def turn_of(self, p: Fragment, now_s: float) -> bool:
        """Return whether it is this fragment's turn to be stored.

        Each large fragment has an equal part of the share, so that none is left out for good.
        """
        if not self.measured or p not in self._took or self.bytes_of(p) <= SMALL_BYTES:
            return True
        large = sum(self.bytes_of(each) > SMALL_BYTES for each in self.sizes)
        began_s, took_s = self._took[p]
        return now_s - began_s >= took_s * large / STORING_SHARE

    def limit_s(self, p: Fragment) -> float:
        """Return the timeout of storing a version, in seconds."""
        if p in self._took:
            return max(SILENCE_S, PATIENCE * self._took[p][1])
        took_s = self.bytes_of(p) / self._estimated_bytes_s()
        return max(SILENCE_S, min(FIRST_S, PATIENCE * took_s))

    def _estimated_bytes_s(self) -> float:
        """Return the lowest throughput that was measured with any large fragment.

        Without one it is `SLOWEST_BYTES_S`. Small fragments measure the latency of the depot.
        """
        written = [(p, took_s) for p, (_, took_s) in [*self._took.items()]]
        found = [
            self.bytes_of(p) / max(took_s, 1e-9)
            for p, took_s in (*written, *self._read_s.items())
            if p in self.sizes and self.bytes_of(p) > SMALL_BYTES
        ]
        return min((*found, FASTEST_READ_BYTES_S)) if found else SLOWEST_BYTES_S

    def limit_of_s(self, p: Fragment, nbytes: int) -> float:
        """Return the timeout of writing `nbytes` of a fragment's contributions, in seconds."""
        return max(SILENCE_S, self.limit_s(p) * nbytes / self.bytes_of(p))

    def cost_text(self) -> str:
        """Describe the cost of storing, once all fragments have been stored."""
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
    """A write that was given up."""

    job: Future[bool]
    began_s: float
    """The time at which it began, in seconds of the steady clock."""


class StoringThread:
    """A thread that stores one version after another; its coroutines belong to one event loop."""

    def __init__(self, pace: StoringPace, now_s: Callable[[], float] = time.monotonic) -> None:
        self.pace, self._now_s = pace, now_s
        self._thread = ThreadPoolExecutor(1, "storing")
        self._turn = asyncio.Lock()  # held by one write until it has ended or is given up
        self._hanging: _Hanging | None = None  # the last write that was given up

    async def alone(self, call: Callable[[], T]) -> T:
        """Run `call` while nothing is being stored, and return its result.

        The call waits for the write before it, at most for that write's timeout. A write that was
        given up has its own copy of the data, and may still run beside the call.
        """
        async with self._turn:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def store(self, p: Fragment, call: Callable[[Callable[[], None]], bool]) -> bool | str:
        """Store a version. Return True if it is durable, False if not its turn, else the reason.

        `call`: stores the version. It calls its argument once it has a copy and needs no shared
        arrays.

        Errors: the errors of `call`.
        """
        if not self.pace.turn_of(p, self._now_s()):
            return False
        return await self._patiently(call, self.pace.limit_s(p))

    async def keep(self, p: Fragment, nbytes: int, call: Callable[[], None]) -> str | None:
        """Write `nbytes` of a fragment's contributions; return why they are not durable, or None.

        `call`: writes them, and needs no shared arrays.

        Errors: the errors of `call`.
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
        """Return the result of `call`, or why it was given up or not even begun."""
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
    """Log the error of a write that was given up, once it has ended."""
    if not waiting.cancelled() and (error := waiting.exception()) is not None:
        log.error("a version that was given up is not stored: %s", error)
