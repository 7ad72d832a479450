"""Public fragments for learners that join: put once for all, in parts that a link can carry.

A shard puts a fragment into the object store once a version and hands out references; a host of an
island of several asks for its own range, and hosts that have the same range share its objects. Ray
brings an object to each node once, however many learners of it ask, and they map it there. Ray
sends anew what was not pulled in time, so each object is cut into parts of which one takes five
seconds at most, by the slowest rate that learners have told of.
"""

from __future__ import annotations

import asyncio
import functools
import math
import reprlib
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray

from cluster.actors.object_store.ranges import Range
from coordinator.codec import Sent, split
from coordinator.errors import Malformed
from coordinator.fragments import Flat
from coordinator.protocol import Fragment, Version

PART_S = 5.0
"""What one object may take of the link of whoever pulls it: half of what Ray waits for it."""
MIN_PART_BYTES = 2**20
"""No part is smaller, however slow a link is said to be: one learner decides for all that join."""
RECENT_S = 60.0
"""A rate that was told longer ago is forgotten."""
PROBE_BYTES, PROBE_GROWS = 2**20, 4
"""Of the object by which whoever joins measures its link before it asks for anything large; another
one is so many times as large."""
SOON_S = 5.0
"""A shard answers within so many seconds. What is not put by then is asked for again."""
T = TypeVar("T")


class FragmentParts(NamedTuple):
    """Where arrays of so many bytes in all lie in the object store, in order."""

    nbytes: int
    parts: Sequence[ray.ObjectRef]


class Probe(NamedTuple):
    """An object to be pulled for the time that takes. `largest`: bytes of the largest fragment."""

    nbytes: int
    parts: Sequence[ray.ObjectRef]
    largest: int


class Shared(NamedTuple):
    """Where a public fragment, or a range of it, of so many bytes lies: f32 arrays, one behind the
    other; none if the range is empty."""

    version: Version
    nbytes: int
    parts: Sequence[ray.ObjectRef]


class Encoded(NamedTuple):
    """Where an encoded difference of so many bytes lies, in parts, and the moments beside it; None
    if there are no moments."""

    nbytes: int
    difference: Sequence[ray.ObjectRef]
    moments: Sequence[ray.ObjectRef] | None


Boxed: TypeAlias = Sent | Encoded
"""An encoded difference, or where it lies if it is large."""


@dataclass(slots=True)
class Rates:
    """The bytes a second that learners have lately told of; for one event loop.

    `now_s`: a steady clock.
    """

    now_s: Callable[[], float] = time.monotonic
    _told: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def tell(self, bytes_s: object) -> None:
        """Note a learner's rate; infinity means that it has no need of parts.

        Errors: `Malformed` if it is not a positive number.
        """
        if not isinstance(bytes_s, float | int) or not bytes_s > 0:
            raise Malformed(f"a link cannot carry {reprlib.repr(bytes_s)} bytes a second")
        since_s = self.now_s() - RECENT_S
        self._told = [each for each in self._told if each[0] >= since_s]
        self._told.append((self.now_s(), bytes_s))

    @property
    def slowest(self) -> float:
        """The lowest rate of the last minute, in bytes a second; infinity if there is none."""
        since_s = self.now_s() - RECENT_S
        return min((each for told_s, each in self._told if told_s >= since_s), default=math.inf)


def parts_of(nbytes: int, bytes_s: float) -> int:
    """Return into how many parts to cut so many bytes for a link of this rate."""
    return max(1, math.ceil(nbytes / max(MIN_PART_BYTES, PART_S * bytes_s)))


class FragmentPublisher:
    """The objects that a shard has put for learners; for one event loop.

    What is put of a fragment is kept until its next version is public. What is being put by then
    is still given, once, to whoever asks for it again.
    """

    def __init__(
        self,
        copied: Callable[[Fragment, Range | None], tuple[Version, Flat]],
        sizes: Callable[[], Mapping[Fragment, int]],
    ) -> None:
        """`copied`: a copy of a range of the public fragment (None: of all of it) and its version;
        called on another thread. `sizes`: elements of each fragment."""
        self._sizes = sizes
        self._copied, self._rates = copied, Rates()
        self._there: dict[Fragment, dict[Hashable, asyncio.Future[Any]]] = {}
        self._late = set[asyncio.Future[Any]]()  # a newer version became public meanwhile
        self._probes: dict[int, asyncio.Future[FragmentParts]] = {}
        self._thread = ThreadPoolExecutor(1, "sharing")
        self._publishing = ThreadPoolExecutor(
            1, "publishing"
        )  # which waits for no learner that joins

    async def probe(self, nbytes: int) -> Probe:
        """Return one object for all that measure their links within a minute; no object where all
        that there is to pull is no larger.

        Errors: Ray's, if there is no room for it; whoever asks next may find some.
        """
        largest = 4 * max(self._sizes().values())
        if largest <= nbytes:
            return Probe(nbytes, (), largest)
        if (found := self._probes.get(nbytes)) is None:
            zeros = np.zeros(nbytes, np.uint8)
            found = self._probes[nbytes] = _on(self._thread, lambda: put([zeros]))
            asyncio.get_running_loop().call_later(RECENT_S, self._drop_probe, nbytes, found)
        try:
            return Probe(*await asyncio.shield(found), largest)
        except Exception:
            self._drop_probe(nbytes, found)
            raise

    def _drop_probe(self, nbytes: int, found: asyncio.Future[FragmentParts]) -> None:
        if self._probes.get(nbytes) is found:
            del self._probes[nbytes]

    async def fragment(
        self, p: Fragment, bytes_s: float, own: Range | None = None, least: Version | None = None
    ) -> Shared:
        """Return where the public fragment lies, or a range of it, for a link of so many bytes a
        second.

        `least`: an older version is of no use, if there is a newer one.
        Errors: `Malformed`; Ray's, if there is no room for it.
        """
        self._rates.tell(bytes_s)
        share = functools.partial(self._share, p, own)
        found = await self._once(p, own, share)
        if least is not None and found.version < least:  # it was copied before that was public
            found = await self._once(p, own, share)
        return found

    def _share(self, p: Fragment, own: Range | None, bytes_s: float) -> Shared:
        version, flat = self._copied(p, own)
        return Shared(version, flat.nbytes, _put_cut(flat, bytes_s))

    async def encoded(
        self,
        p: Fragment,
        what: Hashable,
        made: Callable[[], Sequence[Sent]],
        bytes_s: float,
        inline_bytes: int,
    ) -> Sequence[Boxed]:
        """Return encoded differences, or where they lie if they have more than so many bytes in
        all.

        `made`: makes them, on another thread, once for all that ask for `what`.
        Errors: as `fragment`.
        """
        self._rates.tell(bytes_s)

        def box(slowest: float) -> Sequence[Boxed]:
            payloads = made()
            if sum(each.nbytes for each in payloads) <= inline_bytes:
                return payloads
            return [_put_encoded(each, slowest) for each in payloads]

        return await self._once(p, ("encoded", what), box)

    async def _once(self, p: Fragment, what: Hashable, put: Callable[[float], T]) -> T:
        there = self._there.setdefault(p, {})
        if (found := there.get(what)) is None:
            slowest = self._rates.slowest
            found = there[what] = _on(self._thread, functools.partial(put, slowest))
        try:
            return await asyncio.shield(found)
        finally:
            spent = found.done() and (found in self._late or found.exception() is not None)
            if spent:  # whoever asks next has the newer version, or may find room
                self._late.discard(found)
                if there.get(what) is found:
                    del there[what]

    async def publication(self, payload: Sent) -> Sequence[ray.ObjectRef]:
        """Put what is published. Errors: as `fragment`."""
        return (await _on(self._publishing, lambda: put([payload]))).parts

    def forget(self, p: Fragment | None = None) -> None:
        """Drop what was put of a fragment that has a newer version, or of all.

        Learners that have the references keep the objects.
        """
        if p is None:
            self._there.clear()
            self._late.clear()
            return
        there = self._there.get(p, {})
        self._late |= {each for each in there.values() if not each.done()}
        for what in [what for what, each in there.items() if each.done()]:
            self._late.discard(there.pop(what))


async def soon(asked: Awaitable[T], end_s: float) -> T | None:
    """Return what comes of it by `end_s` of the event loop's clock; None if nothing does."""
    limit = asyncio.timeout_at(end_s)
    try:
        async with limit:
            return await asked
    except TimeoutError:
        if not limit.expired():
            raise
        return None


def _on(thread: ThreadPoolExecutor, call: Callable[[], T]) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(thread, call)


def put(arrays: Sequence[NDArray[Any] | Sent]) -> FragmentParts:
    """Put arrays, one object each. Errors: Ray's, if there is no room."""
    return FragmentParts(sum(each.nbytes for each in arrays), [ray.put(each) for each in arrays])


def _put_cut(array: NDArray[Any], bytes_s: float) -> list[ray.ObjectRef]:
    """Put an array in as many parts as a link of this rate needs; no part if it is empty."""
    cuts = np.array_split(array, parts_of(array.nbytes, bytes_s)) if array.size else []
    return [ray.put(each) for each in cuts]


def _put_encoded(sent: Sent, bytes_s: float) -> Encoded:
    difference, moments = split(sent)
    beside = None if moments is None else _put_cut(moments, bytes_s)
    return Encoded(sent.nbytes, _put_cut(difference, bytes_s), beside)
