"""What a shard has for the hosts of an island of several, of which each has a range of a fragment.

Nothing here waits or copies a whole fragment. The shard's public fragments may be read while others
are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.codec import Payload, Sent, joined, split
from coordinator.parts import cut_out
from coordinator.protocol import Fragment, Publication, Version

Range = tuple[int, int]
"""Elements of a fragment, from the one to before the other."""


class Ranges:
    """Cuts ranges out of differences and out of the means of first moments."""

    def __init__(
        self,
        links: Callable[[Fragment, Version, Version], list[Sent] | None],
        moments: Callable[[Sequence[Fragment]], list[Sent | None]],
    ) -> None:
        """`links`, `moments`: the shard's, `Shard.shared` the last one."""
        self._links, self._moments = links, moments
        self._came: dict[Fragment, tuple[Version, Payload | None]] = {}

    def published(self, said: Publication, sent: Sent) -> None:
        """Remember the mean of first moments that came with a version, until there is a newer."""
        self._came[said.fragment] = said.version, split(sent)[1]

    def links(
        self, p: Fragment, older: Version, newer: Version, own: Range | None, size: int
    ) -> list[Sent]:
        """Return the differences that lead from one version to another; none if they are not kept.

        Of these elements of `size`, with the mean of first moments if one came with the last of
        them; without a range as they were published.
        """
        links = self._links(p, older, newer)
        if own is None or not links:
            return links or []
        version, mean = self._came.get(p, (None, None))
        if version == newer:
            links = [*links[:-1], joined(split(links[-1])[0], mean)]
        return [cut_out(each, size, *own) for each in links]

    def moments(self, p: Fragment, own: Range | None, size: int) -> list[Sent]:
        """Return the mean of first moments of these elements, or of all, encoded, if there is
        one."""
        (mean,) = self._moments([p])
        if mean is None:
            return []
        return [mean if own is None else cut_out(mean, size, *own)]
