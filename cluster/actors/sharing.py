"""Public fragments for those who join: published once for all, in parts that a link can carry.

A shard puts a fragment into the object store once a version, and hands out references. Ray brings
the object to each node once, however many learners of it ask, and they map it there. Ray sends anew
what was not pulled in ten seconds, so a fragment is cut into parts of which each takes five at
most, by the slowest rate that those who ask have told of.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray

from cluster.tasks import Tasks
from coordinator.codec import Sent
from coordinator.fragments import Flat
from coordinator.protocol import Fragment, Version

PART_S = 5.0
"""What one object may take of the link of whoever pulls it: half of what Ray waits for it."""
RECENT_S = 60.0
"""A rate that was told longer ago is forgotten."""
PROBE_BYTES, PROBE_GROWS = 2**20, 4
"""Of the object by which whoever joins measures its link before it asks for anything large; another
one is so many times as large."""
T = TypeVar("T")


class Parts(NamedTuple):
    """Where arrays of so many bytes in all lie in the object store, in order."""

    nbytes: int
    parts: Sequence[ray.ObjectRef]


class Probe(NamedTuple):
    """An object to be pulled for the time that takes. `largest`: bytes of the largest fragment."""

    nbytes: int
    parts: Sequence[ray.ObjectRef]
    largest: int


class Shared(NamedTuple):
    """Where a public fragment of so many bytes lies: f32 arrays, one behind the other."""

    version: Version
    nbytes: int
    parts: Sequence[ray.ObjectRef]


@dataclass(slots=True)
class Rates:
    """Bytes a second that learners have lately told of; `now_s`: a steady clock."""

    now_s: Callable[[], float] = time.monotonic
    _told: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def tell(self, bytes_s: float) -> None:
        self._told.append((self.now_s(), bytes_s))

    def parts_of(self, nbytes: int) -> int:
        """Into how many parts so many bytes are to be cut."""
        since_s = self.now_s() - RECENT_S
        self._told = [each for each in self._told if each[0] >= since_s]
        slowest = min((bytes_s for _, bytes_s in self._told), default=math.inf)
        return max(1, math.ceil(nbytes / (PART_S * slowest)))


class Sharing:
    """What a shard has in the object store for who joins; for one event loop."""

    def __init__(
        self,
        whole: Callable[[Fragment], tuple[Version, Flat]],
        sizes: Callable[[], Mapping[Fragment, int]],
    ) -> None:
        """`whole`: a copy of the public fragment; called on another thread. `sizes`: elements of
        each fragment."""
        self._sizes = sizes
        self._whole, self._rates = whole, Rates()
        self._there: dict[Fragment, asyncio.Task[Shared]] = {}
        self._probes: dict[int, asyncio.Task[Parts]] = {}
        self._tasks = Tasks()  # awaited by whoever asks for what they put
        self._thread = ThreadPoolExecutor(1, "sharing")

    async def probe(self, nbytes: int) -> Probe:
        """One object for all who measure their links within a minute; none of them is needed where
        all that there is to pull is no larger."""
        largest = 4 * max(self._sizes().values())
        if largest <= nbytes:
            return Probe(nbytes, (), largest)
        if nbytes not in self._probes:
            zeros = np.zeros(nbytes, np.uint8)
            self._probes[nbytes] = self._tasks.spawn(self._off(lambda: put([zeros])))
            asyncio.get_running_loop().call_later(RECENT_S, self._probes.pop, nbytes)
        return Probe(*await asyncio.shield(self._probes[nbytes]), largest)

    async def fragment(self, p: Fragment, bytes_s: float) -> Shared:
        """Where the public fragment lies, for whoever pulls so many bytes a second.

        Errors: Ray's, if there is no room for it.
        """
        self._rates.tell(bytes_s)
        if p not in self._there:
            self._there[p] = self._tasks.spawn(self._off(lambda: self._shared(p)))
        task = self._there[p]
        try:
            return await asyncio.shield(task)
        except Exception:
            if self._there.get(p) is task:
                del self._there[p]  # whoever asks next may find room
            raise

    def _shared(self, p: Fragment) -> Shared:
        version, flat = self._whole(p)
        cuts = np.array_split(flat, self._rates.parts_of(flat.nbytes))
        return Shared(version, flat.nbytes, [ray.put(each) for each in cuts])

    async def differences(self, payloads: Sequence[Sent]) -> Parts:
        """Errors: as `fragment`."""
        return await self._off(lambda: put(payloads))

    async def _off(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def forget(self, p: Fragment | None = None) -> None:
        """There is a newer version of it, or of all; who has the references keeps the objects."""
        if p is None:
            self._there.clear()
        else:
            self._there.pop(p, None)


def put(arrays: Sequence[NDArray[Any] | Sent]) -> Parts:
    """Errors: Ray's, if there is no room."""
    return Parts(sum(each.nbytes for each in arrays), [ray.put(each) for each in arrays])
