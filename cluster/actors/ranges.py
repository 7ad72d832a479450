"""What a shard has for the hosts of an island of several, of which each has a range of a fragment.

Nothing here waits; the shard's public fragments may be read while others are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from coordinator.codec import Payload, Sent, joined, split
from coordinator.fragments import Flat
from coordinator.parts import cut_out
from coordinator.protocol import Fragment, Publication, Version

Range = tuple[int, int]
"""Elements of a fragment, from the one to before the other."""


class Ranges:
    """Cuts ranges out of public fragments, of differences, and of the means of first moments."""

    def __init__(
        self,
        whole: Callable[[Sequence[Fragment]], list[tuple[Version, Flat]]],
        links: Callable[[Fragment, Version, Version], list[Sent] | None],
        moments: Callable[[Sequence[Fragment]], list[Sent | None]],
    ) -> None:
        """`whole`, `links`, `moments`: the shard's, `Shard.shared` the last one."""
        self._whole, self._links, self._moments = whole, links, moments
        self._came: dict[Fragment, tuple[Version, Payload | None]] = {}

    def published(self, said: Publication, sent: Sent) -> None:
        """Remember the mean of first moments that came with a version, until there is a newer."""
        self._came[said.fragment] = said.version, split(sent)[1]

    def whole(self, p: Fragment, own: Range) -> tuple[Version, Flat]:
        """These elements of the public fragment."""
        ((version, flat),) = self._whole([p])
        return version, flat[slice(*own)].copy()

    def missed(
        self, p: Fragment, older: Version, newer: Version, own: Range, size: int
    ) -> list[Sent] | tuple[Version, Flat]:
        """What leads from one version to another, of these elements of `size`, with the mean of
        first moments if one came with the last of them; or they as they are now."""
        if not (links := self._links(p, older, newer)):
            return self.whole(p, own)
        version, mean = self._came.get(p, (None, None))
        if version == newer:
            links = [*links[:-1], joined(split(links[-1])[0], mean)]
        return [cut_out(each, size, *own) for each in links]

    def moments(self, owns: Mapping[Fragment, Range], sizes: Sequence[int]) -> dict[Fragment, Sent]:
        """These elements of the means of first moments, encoded, as far as there are any; `sizes`:
        of all fragments."""
        means = zip(owns.items(), self._moments([*owns]), strict=True)
        return {p: cut_out(mean, sizes[p], *own) for (p, own), mean in means if mean is not None}
