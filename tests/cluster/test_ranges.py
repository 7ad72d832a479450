"""What a shard has for hosts that want a range of a fragment, first moments beside it."""

from __future__ import annotations

import numpy as np
import pytest

from cluster.actors.object_store.ranges import Range, Ranges
from coordinator.codec import Sent, Wire, WithMoments, decode, encode, split
from coordinator.fragments import Flat
from coordinator.parts import Split, cut_out
from coordinator.protocol import Fragment, Publication, Version

SIZE, OWN = 96, (32, 96)
P, Q = Fragment(0), Fragment(1)
V1, V2, V3 = (Version(0, number) for number in (1, 2, 3))
VALUES = np.arange(SIZE, dtype=np.float32)
MEAN = encode(Wire.INT8, -VALUES)


def own(sent: Sent | None) -> tuple[Flat, Flat | None]:
    """The difference, and the moments beside it."""
    assert sent is not None
    difference, moments = split(sent)
    size = OWN[1] - OWN[0]
    return decode(difference, size), None if moments is None else decode(moments, size)


def ranges(links: list[Sent] | None) -> Ranges:
    """Of a shard with these links, which has a mean of the first moments of fragment 0."""
    return Ranges(
        lambda p, older, newer: links,
        lambda fragments: [MEAN if p == P else None for p in fragments],
    )


def test_the_mean_comes_with_the_version_that_it_was_published_with_and_no_other() -> None:
    shard = ranges([VALUES, 2 * VALUES])
    shard.published(Publication(P, V3, V2, ()), WithMoments(VALUES, MEAN))
    first, last = list(shard.links(P, V1, V3, OWN, SIZE))
    assert isinstance(first, np.ndarray)
    assert own(first)[1] is None
    difference, moments = own(last)  # type: ignore[arg-type]
    assert np.array_equal(difference, 2 * VALUES[slice(*OWN)])
    assert moments is not None
    assert np.allclose(moments, -VALUES[slice(*OWN)], atol=1)
    for newer, p in ((V2, P), (V3, Q)):
        assert all(isinstance(each, np.ndarray) for each in shard.links(p, V1, newer, OWN, SIZE))
    shard.published(Publication(P, V3, V2, ()), VALUES)  # without moments
    assert all(isinstance(each, np.ndarray) for each in shard.links(P, V1, V3, OWN, SIZE))


def test_without_a_range_differences_come_as_they_were_published() -> None:
    assert ranges([VALUES]).links(P, V1, V2, None, SIZE)[0] is VALUES
    assert ranges([VALUES]).moments(P, None, SIZE)[0] is MEAN


@pytest.mark.parametrize("own", [None, OWN])
def test_of_what_is_not_kept_there_are_no_links(own: Range | None) -> None:
    assert ranges(None).links(P, V1, V2, own, SIZE) == []


def test_who_joins_gets_the_means_that_there_are() -> None:
    (mean,) = ranges(None).moments(P, OWN, SIZE)
    assert np.allclose(own(mean)[0], -VALUES[slice(*OWN)], atol=1)
    assert ranges(None).moments(Q, (0, 32), SIZE) == []


@pytest.mark.parametrize("wire", [*Wire])
def test_a_host_without_a_block_of_a_small_fragment_gets_an_empty_difference(wire: Wire) -> None:
    """Forty elements on four devices: 32, 8, none and none."""
    size = 40
    for part in Split(4, 4).ranges(size):
        cut = cut_out(encode(wire, VALUES[:size]), size, part.start, part.stop)
        assert isinstance(cut, np.ndarray)
        assert decode(cut, part.stop - part.start).size == part.stop - part.start
