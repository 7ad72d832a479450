"""Tests of moments that a donor's hosts cut and a joining island's hosts put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.actors.object_store.moment_pieces import MomentPieceRef, joined, put_pieces
from coordinator.parts import Split
from islands.inner import Share

SPLITS = st.builds(
    lambda hosts, each: Split(hosts * each, hosts), st.integers(1, 4), st.integers(1, 4)
)
SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=4)


@given(donor=SPLITS, asker=SPLITS, sizes=SIZES)
def test_each_host_gets_its_share_and_nothing_else(
    donor: Split, asker: Split, sizes: list[int]
) -> None:
    wholes = [np.arange(size, dtype=np.float32) for size in sizes]
    count = np.array([7], np.int32)
    pieces: list[MomentPieceRef] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ray.put", lambda array: array)
        for host in range(donor.hosts):
            owns = [donor.ranges(size)[host] for size in sizes]
            shares = [
                Share(own.start, own.stop, n, everywhere=False)
                for own, n in zip(owns, sizes, strict=True)
            ]
            leaves = [count, *(whole[own] for whole, own in zip(wholes, owns, strict=True))]
            everywhere = Share(0, 1, 1, everywhere=True)
            pieces += put_pieces(leaves, [everywhere, *shares], asker, first=host == 0)
    for host in range(asker.hosts):
        mine = [piece for piece in reversed(pieces) if piece.host == host]
        arrays: list[Any] = [piece.reference for piece in mine]
        seen, *found = joined(mine, arrays, 1 + len(sizes))
        assert seen is count
        for whole, leaf in zip(wholes, found, strict=True):
            np.testing.assert_array_equal(leaf, whole[asker.ranges(whole.size)[host]])
    assert sum(piece.nbytes for piece in pieces) == 4 * (sum(sizes) + asker.hosts), "each once"


@given(split=SPLITS, size=st.integers(1, 100_000))
def test_ranges_of_all_hosts_cover_the_whole(split: Split, size: int) -> None:
    end = 0
    for own in split.ranges(size):
        assert own.start == min(end, size)
        end = own.stop
    assert end == size
