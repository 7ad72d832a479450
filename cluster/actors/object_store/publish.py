"""Public fragments for joining learners, put into the object store once, in parts for slow links.

A shard puts a fragment once per version and hands out references. A host of an island of several
asks for its own range, and hosts with the same range share its objects. Ray brings an object to
each node once, however many learners there ask for it, and they map it. Ray transfers an object
again if it was not pulled in time. Each fragment is therefore cut into parts that take five seconds
at most, at the slowest rate that learners have reported.
"""

from __future__ import annotations

import asyncio
import functools
import math
import reprlib
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
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
"""Seconds that one object may occupy its receiver's link: half of Ray's own timeout."""
MIN_PART_BYTES = 2**20
"""The smallest part in bytes, however slow a reported link is.

One learner's report decides for all that join.
"""
RECENT_S = 60.0
"""Seconds after which a reported rate is forgotten."""
PROBE_BYTES, PROBE_GROWS = 2**20, 4
"""Bytes of the first object with which a joining learner measures its link, and a factor.

Each further object is larger by that factor.
"""
T = TypeVar("T")


class FragmentParts(NamedTuple):
    """Arrays in the object store, in order."""

    nbytes: int
    """Bytes of all arrays together."""
    parts: Sequence[ray.ObjectRef]


class Probe(NamedTuple):
    """An object whose transfer is timed to measure a link."""

    nbytes: int
    parts: Sequence[ray.ObjectRef]
    """The object; empty if nothing that the shard holds is larger."""
    largest: int
    """Bytes of the largest fragment."""


class Shared(NamedTuple):
    """A public fragment, or a range of it, in the object store."""

    version: Version
    nbytes: int
    parts: Sequence[ray.ObjectRef]
    """Consecutive arrays of f32; empty if the range is empty."""


class Encoded(NamedTuple):
    """An encoded difference in the object store."""

    nbytes: int
    """Bytes of the difference and the moments together."""
    difference: Sequence[ray.ObjectRef]
    """The parts of the difference."""
    moments: Sequence[ray.ObjectRef] | None
    """The parts of the moments that come with it; None if there are none."""


Boxed: TypeAlias = Sent | Encoded
"""An encoded difference, or where it is in the object store if it is large."""


@dataclass(slots=True)
class Rates:
    """The rates, in bytes a second, that learners have recently reported; for one event loop.

    `now_s`: a monotonic clock.
    """

    now_s: Callable[[], float] = time.monotonic
    _told: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def tell(self, bytes_s: object) -> None:
        """Note a learner's rate; infinity means that it needs no parts.

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
    """Return the number of parts of an object of this size for a link of this rate."""
    return max(1, math.ceil(nbytes / max(MIN_PART_BYTES, PART_S * bytes_s)))


class FragmentPublisher:
    """The objects that a shard has put for learners; for one event loop.

    Objects of a fragment are kept until its next version is public. An object that is still being
    put at that time is given, once, to the next request for it.
    """

    def __init__(
        self,
        copied: Callable[[Fragment, Range | None], tuple[Version, Flat]],
        sizes: Callable[[], Mapping[Fragment, int]],
    ) -> None:
        """Publish fragments.

        `copied`: returns a copy of a range of the public fragment (None: all of it), and its
        version; called on another thread. `sizes`: the elements of each fragment.
        """
        self._sizes = sizes
        self._copied, self._rates = copied, Rates()
        self._there: dict[Fragment, dict[Hashable, asyncio.Future[Any]]] = {}
        self._late = set[asyncio.Future[Any]]()  # finished after a newer version became public
        self._probes: dict[int, asyncio.Future[FragmentParts]] = {}
        self._thread = ThreadPoolExecutor(1, "sharing")
        self._publishing = ThreadPoolExecutor(
            1, "publishing"
        )  # a thread that joining learners never occupy

    async def probe(self, nbytes: int) -> Probe:
        """Return one object for all learners that measure their links within a minute.

        There is no object if nothing that the shard holds is larger than `nbytes`.

        Errors: an error of Ray if the store is full; a later request may succeed.
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
        """Return where the public fragment is, or a range of it, for a link of this rate.

        `bytes_s`: in bytes a second. `least`: do not return an older version if there is a newer
        one.

        Errors: `Malformed`; an error of Ray if the store is full.
        """
        self._rates.tell(bytes_s)
        share = functools.partial(self._share, p, own)
        found = await self._once(p, own, share)
        if least is not None and found.version < least:  # it was copied before `least` was public
            found = await self._once(p, own, share)
        return found

    def _share(self, p: Fragment, own: Range | None, bytes_s: float) -> Shared:
        """Copy and put a fragment or a range of it; on the thread for joining learners."""
        version, flat = self._copied(p, own)
        return Shared(version, flat.nbytes, _put_cut(flat, bytes_s))

    async def encoded(
        self,
        p: Fragment,
        key: Hashable,
        made: Callable[[], Sequence[Sent]],
        bytes_s: float,
        inline_bytes: int,
    ) -> Sequence[Boxed]:
        """Return encoded differences, or where they are if they exceed `inline_bytes` together.

        `made`: makes them, on another thread, once for all requests for `key`.

        Errors: the errors of `fragment`.
        """
        self._rates.tell(bytes_s)

        def box(slowest: float) -> Sequence[Boxed]:
            payloads = made()
            if sum(each.nbytes for each in payloads) <= inline_bytes:
                return payloads
            return [_put_encoded(each, slowest) for each in payloads]

        return await self._once(p, ("encoded", key), box)

    async def _once(self, p: Fragment, key: Hashable, put: Callable[[float], T]) -> T:
        """Return the objects for `key`, put once for all concurrent and later requests."""
        objects = self._there.setdefault(p, {})
        if (found := objects.get(key)) is None:
            slowest = self._rates.slowest
            found = objects[key] = _on(self._thread, functools.partial(put, slowest))
        try:
            return await asyncio.shield(found)
        finally:
            spent = found.done() and (found in self._late or found.exception() is not None)
            if spent:  # the next request gets the newer version, or may find room
                self._late.discard(found)
                if objects.get(key) is found:
                    del objects[key]

    async def publication(self, payload: Sent) -> Sequence[ray.ObjectRef]:
        """Put the payload of a publication.

        Errors: the errors of `fragment`.
        """
        return (await _on(self._publishing, lambda: put([payload]))).parts

    def renew(self, fragments: Sequence[Fragment]) -> None:
        """Answer the next requests for these fragments, and for probes, with other objects.

        A learner did not receive them. Learners that still pull them are not disturbed.
        """
        for p in fragments:
            self.forget(p)
        self._probes.clear()

    def forget(self, p: Fragment | None = None) -> None:
        """Drop the objects of a fragment that has a newer version, or of all fragments.

        Learners that hold the references keep the objects alive.
        """
        if p is None:
            self._there.clear()
            self._late.clear()
            return
        objects = self._there.get(p, {})
        self._late |= {each for each in objects.values() if not each.done()}
        for key in [key for key, each in objects.items() if each.done()]:
            self._late.discard(objects.pop(key))


def _on(thread: ThreadPoolExecutor, call: Callable[[], T]) -> asyncio.Future[T]:
    """Call on a thread of this pool."""
    return asyncio.get_running_loop().run_in_executor(thread, call)


def put(arrays: Sequence[NDArray[Any] | Sent]) -> FragmentParts:
    """Put arrays, one object each.

    Errors: an error of Ray if the store is full.
    """
    return FragmentParts(sum(each.nbytes for each in arrays), [ray.put(each) for each in arrays])


def _put_cut(array: NDArray[Any], bytes_s: float) -> list[ray.ObjectRef]:
    """Put an array in as many parts as a link of this rate needs; no part if it is empty."""
    cuts = np.array_split(array, parts_of(array.nbytes, bytes_s)) if array.size else []
    return [ray.put(each) for each in cuts]


def _put_encoded(sent: Sent, bytes_s: float) -> Encoded:
    """Put an encoded difference and its moments, each cut for a link of this rate."""
    difference, moments = split(sent)
    moment_parts = None if moments is None else _put_cut(moments, bytes_s)
    return Encoded(sent.nbytes, _put_cut(difference, bytes_s), moment_parts)
