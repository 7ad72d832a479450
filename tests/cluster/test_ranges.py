"""Tests of a shard's differences and first moments for hosts that want a range of a fragment."""

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
    """Return the difference, and the moments beside it, if any."""
    assert sent is not None
    difference, moments = split(sent)
    size = OWN[1] - OWN[0]
    return decode(difference, size), None if moments is None else decode(moments, size)


def ranges(links: list[Sent] | None) -> Ranges:
    """Return the ranges of a shard with these links and a mean of first moments for fragment 0."""
    return Ranges(
        lambda p, older, newer: links,
        lambda fragments: [MEAN if p == P else None for p in fragments],
    )


def test_mean_comes_only_with_the_version_it_was_published_with() -> None:
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


def test_differences_without_a_range_are_unchanged() -> None:
    assert ranges([VALUES]).links(P, V1, V2, None, SIZE)[0] is VALUES
    assert ranges([VALUES]).moments(P, None, SIZE)[0] is MEAN


@pytest.mark.parametrize("own", [None, OWN])
def test_missing_links_give_an_empty_list(own: Range | None) -> None:
    assert ranges(None).links(P, V1, V2, own, SIZE) == []


def test_joining_host_gets_the_existing_means() -> None:
    (mean,) = ranges(None).moments(P, OWN, SIZE)
    assert np.allclose(own(mean)[0], -VALUES[slice(*OWN)], atol=1)
    assert ranges(None).moments(Q, (0, 32), SIZE) == []


@pytest.mark.parametrize("wire", [*Wire])
def test_host_without_a_block_of_a_fragment_gets_an_empty_difference(wire: Wire) -> None:
    """Four devices own 32, 8, 0 and 0 of 40 elements."""
    size = 40
    for part in Split(4, 4).ranges(size):
        cut = cut_out(encode(wire, VALUES[:size]), size, part.start, part.stop)
        assert isinstance(cut, np.ndarray)
        assert decode(cut, part.stop - part.start).size == part.stop - part.start
