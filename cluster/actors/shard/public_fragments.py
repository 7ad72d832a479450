"""The answers of a shard to learners that join, or that missed a version.

A learner asks for whole fragments, a host of an island of several hosts for its own ranges. The
answers are references to the object store. Each answer comes within `SOON_S`, so that the
caller can rely on the shard being alive, however long it takes to put the bytes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from cluster.actors.object_store.publish import Boxed, FragmentPublisher, Shared
from cluster.actors.object_store.ranges import Range, Ranges
from cluster.shard.arrays import ArrayShard
from coordinator.fragments import Flat
from coordinator.protocol import Fragment, Version

INLINE_BYTES = 90_000
"""The largest payload, in bytes, that is sent inside a message.

Ray sends arguments and answers of up to 100 kB with the call, the message included. Below that the
object store's two round trips cost more than the bytes.
"""
SOON_S = 5.0
"""Seconds within which a shard answers; the learner asks again for missing fragments."""
T = TypeVar("T")
WHOLE: Mapping[Fragment, Range] = MappingProxyType({})
"""No ranges: every fragment is wanted whole."""
ANY: Mapping[Fragment, Version] = MappingProxyType({})
"""No minimum: any version will do."""


class PublicFragments:
    """A shard's public fragments and their differences, as learners get them; for one event loop.

    `sharing`: the objects in the object store. `ranges`: cuts out the range that one host needs.
    """

    def __init__(self, shard: ArrayShard, sizes: Callable[[], Mapping[Fragment, int]]) -> None:
        """Serve a shard's fragments; `sizes` returns the elements of each one."""
        self._shard, self._sizes = shard, sizes
        self.sharing = FragmentPublisher(self._copied, sizes)
        self.ranges = Ranges(shard.links, shard.shared)

    async def shared(
        self,
        fragments: Sequence[Fragment],
        bytes_s: float,
        owns: Mapping[Fragment, Range] = WHOLE,
        least: Mapping[Fragment, Version] = ANY,
    ) -> list[Shared | None]:
        """Return where a learner finds each fragment; None for one that is not in the store yet.

        `bytes_s`: the learner's rate in bytes a second. `owns`: the ranges that it needs, of
        fragments that it does not want whole. `least`: the oldest versions that it can use.
        """
        end_s, publish = _end_s(), self.sharing.fragment
        return [
            await _soon(publish(p, bytes_s, owns.get(p), least.get(p)), end_s) for p in fragments
        ]

    async def mean_moments(
        self, fragments: Sequence[Fragment], bytes_s: float, owns: Mapping[Fragment, Range] = WHOLE
    ) -> list[Sequence[Boxed] | None]:
        """Return the mean first moments of each fragment, one or none; None as in `shared`."""
        end_s, inline_bytes = _end_s(), INLINE_BYTES // max(1, len(fragments))

        def moments(p: Fragment) -> Coroutine[None, None, Sequence[Boxed]]:
            own, size = owns.get(p), self._sizes()[p]
            make = functools.partial(self.ranges.moments, p, own, size)
            return self.sharing.encoded(p, ("moments", own), make, bytes_s, inline_bytes)

        return [await _soon(moments(p), end_s) for p in fragments]

    async def missed(
        self, p: Fragment, older: Version, newer: Version, bytes_s: float, own: Range | None = None
    ) -> Sequence[Boxed] | Shared | None:
        """Return the differences from one version to another, or where they are in the store.

        If they are not kept, return where the public fragment is. Return None if it is not in the
        store yet. `own`: as in `shared`.
        """
        end_s, size = _end_s(), self._sizes()[p]
        make = functools.partial(self.ranges.links, p, older, newer, own, size)
        links = self.sharing.encoded(p, (older, newer, own), make, bytes_s, INLINE_BYTES)
        if (found := await _soon(links, end_s)) is None or found:
            return found
        return await _soon(self.sharing.fragment(p, bytes_s, own, newer), end_s)

    def _copied(self, p: Fragment, own: Range | None) -> tuple[Version, Flat]:
        part = slice(None) if own is None else slice(*own)
        return self._shard.read(p, lambda flat: flat[part].copy())


def _end_s() -> float:
    return asyncio.get_running_loop().time() + SOON_S


async def _soon(asked: Awaitable[T], end_s: float) -> T | None:
    """Return the result if it comes by `end_s` of the event loop's clock; otherwise None."""
    limit = asyncio.timeout_at(end_s)
    try:
        async with limit:
            return await asked
    except TimeoutError:
        if not limit.expired():
            raise
        return None
