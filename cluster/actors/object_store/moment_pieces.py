"""The moments for a joining island in the object store, cut for the hosts of that island.

A host of either island holds only its share of a leaf. The request states how the joining island is
split. Each host of the donor copies its share of each leaf, cuts it at the bounds of the other
island's hosts, and puts the pieces into the object store of its node.
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
    """A piece of a leaf of a donor's moments in the object store, for one joining host."""

    host: int
    """The number of the joining host."""
    leaf: int
    """The number of the leaf."""
    start: int
    """The first element of the piece within the leaf."""
    nbytes: int
    reference: ray.ObjectRef


class Owned(Protocol):
    """The share of a leaf of `size` elements that one host holds."""

    @property
    def start(self) -> int:
        """The first element of the share."""
        ...

    @property
    def size(self) -> int:
        """The elements of the leaf."""
        ...

    @property
    def everywhere(self) -> bool:
        """Whether every host holds the whole leaf."""
        ...


def put_pieces(
    leaves: Sequence[NDArray[Any]],
    shares: Sequence[Owned],
    split: Split,
    *,
    first: bool,
    came: Callable[[], None] = lambda: None,
) -> list[MomentPieceRef]:
    """Put a host's shares of the leaves, cut for hosts that are split like this; return the pieces.

    `first`: this is its island's first host, which alone puts leaves that all hosts hold. `came`:
    called for each leaf.

    Errors: an error of Ray if the store is full.
    """
    pieces: list[MomentPieceRef] = []
    for number, (leaf, share) in enumerate(zip(leaves, shares, strict=True)):
        came()
        if share.everywhere:
            if first:
                stored = leaf.nbytes, ray.put(leaf)
                pieces += [MomentPieceRef(host, number, 0, *stored) for host in range(split.hosts)]
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
    """Return one host's share of each leaf, joined from its pieces; `leaves` is their number."""
    found: list[list[tuple[int, NDArray[Any]]]] = [[] for _ in range(leaves)]
    for piece, array in zip(pieces, arrays, strict=True):
        found[piece.leaf].append((piece.start, array))
    shares = list[NDArray[Any]]()
    for each in found:
        parts = [array for _, array in sorted(each, key=lambda at: at[0])]
        if not parts:
            parts = [np.zeros(0, np.float32)]  # a small leaf without a block for this host
        shares.append(parts[0] if len(parts) == 1 else np.concatenate(parts))
    return shares


class DonatedMoments:
    """The moments that a donor gives, copied once for all identical requests at the same time.

    The receivers keep the objects alive in the store; the donor keeps no reference.
    """

    def __init__(self) -> None:
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._given: dict[tuple[Life, Split], Future[list[MomentPieceRef] | None]] = {}
        self.put_leaves = 0
        """Leaves that this process has put for others, so that waiting learners see progress."""

    def came(self) -> None:
        """Count a leaf that is put."""
        self.put_leaves += 1

    def once(
        self, life: Life, split: Split, put: Callable[[], list[MomentPieceRef] | None]
    ) -> list[MomentPieceRef] | None:
        """Return the pieces of this split, as `put` returns them; None if there are none.

        Identical requests at the same time share one call of `put`, and wait for it. Requests for
        different splits are served one after the other.

        Errors: the errors of `put`; an error of Ray if the store is full.
        """
        key = life, split
        with self._lock:
            if is_first := key not in self._given:
                self._given[key] = Future()
            future = self._given[key]
        if not is_first:
            return future.result()
        try:
            with self._turn:
                try:
                    pieces = put()
                finally:
                    with self._lock:  # later requests get another copy
                        del self._given[key]
        except BaseException as error:
            future.set_exception(error)
            raise
        future.set_result(pieces)
        return pieces
