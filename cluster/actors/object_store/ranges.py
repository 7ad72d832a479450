"""Ranges of a shard's differences and moments, for the hosts of an island of several hosts.

Nothing here blocks or copies a whole fragment. The shard's public fragments may be read while
others are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.codec import Payload, Sent, joined, split
from coordinator.parts import cut_out
from coordinator.protocol import Fragment, Publication, Version

Range = tuple[int, int]
"""Elements of a fragment: the first, and the one after the last."""


class Ranges:
    """A cutter of ranges out of differences and out of means of first moments."""

    def __init__(
        self,
        links: Callable[[Fragment, Version, Version], list[Sent] | None],
        moments: Callable[[Sequence[Fragment]], list[Sent | None]],
    ) -> None:
        """`links`, `moments`: methods of the shard; `moments` is `Shard.shared`."""
        self._links, self._moments = links, moments
        self._came: dict[Fragment, tuple[Version, Payload | None]] = {}

    def published(self, publication: Publication, sent: Sent) -> None:
        """Remember the mean of first moments of a published version, until there is a newer one."""
        self._came[publication.fragment] = publication.version, split(sent)[1]

    def links(
        self, p: Fragment, older: Version, newer: Version, own: Range | None, size: int
    ) -> list[Sent]:
        """Return the differences from one version to another; empty if they are not kept.

        With a range, each is cut to those elements out of `size`, and the last one includes the
        mean of first moments if that came with it. Without a range they are as published.
        """
        links = self._links(p, older, newer)
        if own is None or not links:
            return links or []
        version, mean = self._came.get(p, (None, None))
        if version == newer:
            links = [*links[:-1], joined(split(links[-1])[0], mean)]
        return [cut_out(each, size, *own) for each in links]

    def moments(self, p: Fragment, own: Range | None, size: int) -> list[Sent]:
        """Return the mean of first moments of a range, or of all elements, encoded.

        The list is empty if there is no mean.
        """
        (mean,) = self._moments([p])
        if mean is None:
            return []
        return [mean if own is None else cut_out(mean, size, *own)]
