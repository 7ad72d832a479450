"""Moments that an island gives to one that joins, in the object store, cut as that one's hosts need
them: a host of either has no more of a leaf than its share.

Whoever asks says how it is split; each host of the donor copies its share of each leaf, cuts it at
the bounds of the other's hosts and puts the pieces into the object store of its node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import numpy as np
import ray
from numpy.typing import NDArray

from coordinator.parts import Split
from coordinator.protocol import Life


class MomentPieceRef(NamedTuple):
    """Where elements of a leaf of a donor's moments lie, those from `start` on, for one host of who
    joins."""

    host: int
    leaf: int
    start: int
    nbytes: int
    reference: ray.ObjectRef


class Owned(Protocol):
    """What a host has of a leaf of `size` elements: those from `start` on. `everywhere`: all hosts
    have all of it."""

    @property
    def start(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def everywhere(self) -> bool: ...


def put_pieces(
    leaves: Sequence[NDArray[Any]],
    shares: Sequence[Owned],
    split: Split,
    *,
    first: bool,
    came: Callable[[], None] = lambda: None,
) -> list[MomentPieceRef]:
    """A host's shares of the leaves, cut for hosts that are split like this. `first`: it is its
    island's first host, which alone gives what all have. `came`: called for each leaf.

    Errors: Ray's, if there is no room.
    """
    pieces: list[MomentPieceRef] = []
    for number, (leaf, share) in enumerate(zip(leaves, shares, strict=True)):
        came()
        if share.everywhere:
            if first:
                there = leaf.nbytes, ray.put(leaf)
                pieces += [MomentPieceRef(host, number, 0, *there) for host in range(split.hosts)]
            continue
        for host, wanted in enumerate(split.ranges(share.size)):
            start = max(share.start, wanted.start)
            cut = leaf[start - share.start : max(0, wanted.stop - share.start)]
            if cut.size:
                pieces.append(MomentPieceRef(host, number, start, cut.nbytes, ray.put(cut)))
    return pieces


def joined(
    pieces: Sequence[MomentPieceRef], arrays: Sequence[NDArray[Any]], leaves: int
) -> list[NDArray[Any]]:
    """One host's share of each of so many leaves, of its pieces."""
    found: list[list[tuple[int, NDArray[Any]]]] = [[] for _ in range(leaves)]
    for piece, array in zip(pieces, arrays, strict=True):
        found[piece.leaf].append((piece.start, array))
    whole = list[NDArray[Any]]()
    for each in found:
        parts = [array for _, array in sorted(each, key=lambda at: at[0])]
        if not parts:
            parts = [np.zeros(0, np.float32)]  # a small leaf, which has no block for this host
        whole.append(parts[0] if len(parts) == 1 else np.concatenate(parts))
    return whole


class Giving:
    """Moments that a donor gives, once for all alike who ask meanwhile; whoever asked has what
    keeps them in the object store, and the donor nothing."""

    def __init__(self) -> None:
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._given: dict[tuple[Life, Split], Future[list[MomentPieceRef] | None]] = {}
        self.put_leaves = 0
        """Leaves that this process has put for others: who waits for a donor sees it go on."""

    def came(self) -> None:
        """Count a leaf that is put."""
        self.put_leaves += 1

    def once(
        self, life: Life, split: Split, put: Callable[[], list[MomentPieceRef] | None]
    ) -> list[MomentPieceRef] | None:
        """Where they lie once they are copied and `put`; None if there are none. Those who are
        split in another way come one after the other.

        Errors: its own, and Ray's, if there is no room.
        """
        key = life, split
        with self._lock:
            if mine := key not in self._given:
                self._given[key] = Future()
            given = self._given[key]
        if not mine:
            return given.result()
        try:
            with self._turn:
                try:
                    pieces = put()
                finally:
                    with self._lock:  # whoever asks from here on gets another copy
                        del self._given[key]
        except BaseException as error:
            given.set_exception(error)
            raise
        given.set_result(pieces)
        return pieces
