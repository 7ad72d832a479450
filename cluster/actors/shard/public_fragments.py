"""What a shard answers to learners that join, or missed a version.

A learner asks for whole fragments, and a host of an island of several for its own ranges. The
answers say where the bytes lie in the object store. They come within `SOON_S`, so that their asker
knows that the shard is there, however long the bytes take to be put.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType

from cluster.actors.object_store.publish import SOON_S, Boxed, FragmentPublisher, Shared, soon
from cluster.actors.object_store.ranges import Range, Ranges
from cluster.shard.arrays import ArrayShard
from coordinator.fragments import Flat
from coordinator.protocol import Fragment, Version

INLINE_BYTES = 90_000
"""Ray sends arguments and answers of up to 100 kB, words included, with the call; below it the
store's two round trips cost more than the bytes."""
WHOLE: Mapping[Fragment, Range] = MappingProxyType({})
ANY: Mapping[Fragment, Version] = MappingProxyType({})


class PublicFragments:
    """A shard's public fragments and their differences, as learners get them; for one event loop.

    `sharing`: what is in the object store. `ranges`: cuts out what one host wants.
    """

    def __init__(self, shard: ArrayShard, sizes: Callable[[], Mapping[Fragment, int]]) -> None:
        """`sizes`: elements of each fragment that the shard has."""
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
        """Return where a learner that pulls so many bytes a second finds each fragment; None if
        that is not put yet.

        `owns`: the ranges that it wants, of fragments of which it does not want all. `least`:
        older versions are of no use to it.
        """
        end_s, put = _end_s(), self.sharing.fragment
        return [await soon(put(p, bytes_s, owns.get(p), least.get(p)), end_s) for p in fragments]

    async def mean_moments(
        self, fragments: Sequence[Fragment], bytes_s: float, owns: Mapping[Fragment, Range] = WHOLE
    ) -> list[Sequence[Boxed] | None]:
        """Return the mean of first moments of each fragment, one or none; None as in `shared`."""
        end_s, inline_bytes = _end_s(), INLINE_BYTES // max(1, len(fragments))

        def moments(p: Fragment) -> Coroutine[None, None, Sequence[Boxed]]:
            own, size = owns.get(p), self._sizes()[p]
            made = functools.partial(self.ranges.moments, p, own, size)
            return self.sharing.encoded(p, ("moments", own), made, bytes_s, inline_bytes)

        return [await soon(moments(p), end_s) for p in fragments]

    async def missed(
        self, p: Fragment, older: Version, newer: Version, bytes_s: float, own: Range | None = None
    ) -> Sequence[Boxed] | Shared | None:
        """Return what leads from one version to another, or where it lies; where the public
        fragment lies, if that is not kept; None if it is not put yet. `own`: as in `shared`."""
        end_s, size = _end_s(), self._sizes()[p]
        made = functools.partial(self.ranges.links, p, older, newer, own, size)
        links = self.sharing.encoded(p, (older, newer, own), made, bytes_s, INLINE_BYTES)
        if (found := await soon(links, end_s)) is None or found:
            return found
        return await soon(self.sharing.fragment(p, bytes_s, own, newer), end_s)

    def _copied(self, p: Fragment, own: Range | None) -> tuple[Version, Flat]:
        part = slice(None) if own is None else slice(*own)
        return self._shard.read(p, lambda flat: flat[part].copy())


def _end_s() -> float:
    return asyncio.get_running_loop().time() + SOON_S
