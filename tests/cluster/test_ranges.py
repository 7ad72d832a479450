"""What a shard has for hosts that want a range of a fragment, first moments beside it."""

from __future__ import annotations

import numpy as np

from cluster.actors.ranges import Ranges
from coordinator.codec import Sent, Wire, WithMoments, decode, encode, split
from coordinator.fragments import Flat
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
    """Of a shard with these links, whose fragment is public in its second version, and which has a
    mean of the first moments of fragment 0."""
    return Ranges(
        lambda fragments: [(V2, VALUES) for _ in fragments],
        lambda p, older, newer: links,
        lambda fragments: [MEAN if p == P else None for p in fragments],
    )


def test_the_mean_comes_with_the_version_that_it_was_published_with_and_no_other() -> None:
    shard = ranges([VALUES, 2 * VALUES])
    shard.published(Publication(P, V3, V2, ()), WithMoments(VALUES, MEAN))
    first, last = list(shard.missed(P, V1, V3, OWN, SIZE))
    assert isinstance(first, np.ndarray)
    assert own(first)[1] is None
    difference, moments = own(last)  # type: ignore[arg-type]
    assert np.array_equal(difference, 2 * VALUES[slice(*OWN)])
    assert moments is not None
    assert np.allclose(moments, -VALUES[slice(*OWN)], atol=1)
    for newer, p in ((V2, P), (V3, Q)):
        assert all(isinstance(each, np.ndarray) for each in shard.missed(p, V1, newer, OWN, SIZE))
    shard.published(Publication(P, V3, V2, ()), VALUES)  # without moments
    assert all(isinstance(each, np.ndarray) for each in shard.missed(P, V1, V3, OWN, SIZE))


def test_what_is_not_kept_comes_as_it_is_now_and_is_a_copy() -> None:
    found = ranges(None).missed(P, V1, V2, OWN, SIZE)
    assert isinstance(found, tuple)
    version, flat = found
    assert version == V2
    assert np.array_equal(flat, VALUES[slice(*OWN)])
    assert not np.shares_memory(flat, VALUES)


def test_who_joins_gets_the_means_that_there_are() -> None:
    found = ranges(None).moments({P: OWN, Q: (0, 32)}, [SIZE, SIZE])
    assert found.keys() == {P}
    assert np.allclose(own(found[P])[0], -VALUES[slice(*OWN)], atol=1)
