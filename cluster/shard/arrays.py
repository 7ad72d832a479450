"""The arithmetic of a shard that holds arrays.

Per fragment: the fp32 master, the outer momentum, and the public fragment that all learners share
(12 bytes a parameter), all three changed in place. A merge moves master and momentum; the public
fragment follows when the encoded difference to it is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from cluster.shard.arithmetic import Arithmetic, Held, Staging, Weighed
from cluster.shard.shard import Shard
from cluster.storage.fragments import Arrays
from coordinator import kernels
from coordinator.chain import worth_keeping
from coordinator.codec import (
    Payload,
    Wire,
    add_decoded,
    encode,
    encode_difference,
    wire_of,
)
from coordinator.errors import CorruptPayload
from coordinator.fragments import Flat, Layout, Leaf, cut
from coordinator.kernels import frozen
from coordinator.merge import (
    Directions,
    MergeRule,
    Part,
    Spread,
    directions,
    merge_into,
    merged_of,
    norms,
)
from coordinator.outer import OuterRule
from coordinator.protocol import Fragment, Merge, Version

ArrayShard: TypeAlias = Shard[Payload, Payload, Flat, Arrays]


class OuterOptimizer(Protocol):
    """An outer optimizer that is not ours; its state lies where ours has the momentum."""

    def step(self, master: Flat, state: Flat, delta: Flat) -> None:
        """Move `master` by the merged `delta`, updating `state`; both in place."""
        ...


@dataclass(frozen=True, slots=True)
class Method:
    """How a run merges. `keep_differences`: of each public fragment, where they weigh less than the
    fragment."""

    merge_rule: MergeRule
    outer: OuterRule | OuterOptimizer
    wire_up: Wire
    wire_down: Wire
    keep_differences: int


def first(flat: Flat, generation: int = 0) -> Arrays:
    """Number 0 of one fragment, copied."""
    return Arrays(
        Version(generation, 0),
        master=np.array(flat, np.float32),
        momentum=np.zeros(flat.shape, np.float32),
        public=np.array(flat, np.float32),
    )


def fresh(flats: Sequence[Flat], *, generation: int = 0) -> dict[Fragment, Arrays]:
    """The arrays of an initial model, copied: number 0 of each fragment."""
    return {Fragment(p): first(flat, generation) for p, flat in enumerate(flats)}


def warm_up(wires: Iterable[Wire]) -> None:
    """Have everything compiled that a shard of these wires calls: some seconds on a machine's first
    run, a fraction of one later."""
    for wire in wires:
        layout = cut([Leaf("warm", (kernels.BLOCK,))], 1)
        values = np.ones(kernels.BLOCK, np.float32)
        master, momentum = values.copy(), values.copy()
        payload = frozen(encode(wire, values))
        parts = [Part(payload, 0.2, norms(payload, layout.fragments[0]))] * 5
        merge_into(
            master,
            momentum,
            rule=MergeRule.RDA,
            outer=OuterRule(learning_rate=1.0, momentum=0.0, nesterov=True),
            pieces=layout.fragments[0],
            parts=parts,
        )
        add_decoded(master, encode_difference(wire, master, momentum).payload)
        directions(layout.fragments[0], parts)


class ArrayArithmetic(Arithmetic[Payload, Payload, Flat, Arrays]):
    """Arrays on this host; `spread` gives the work on large fragments to threads."""

    def __init__(self, layout: Layout, method: Method, spread: Spread) -> None:
        self._layout, self._method, self._spread = layout, method, spread
        self._arrays: dict[Fragment, Arrays] = {}

    def put(self, p: Fragment, stored: Arrays) -> None:
        self._arrays[p] = Arrays(
            stored.version,
            master=np.require(stored.master, requirements="W"),
            momentum=np.require(stored.momentum, requirements="W"),
            public=np.require(stored.public, requirements="W"),
        )

    def stored(self, p: Fragment, version: Version, staged: Payload | None) -> Arrays:
        arrays = self._arrays[p]
        if staged is None:
            return Arrays(version, arrays.master, arrays.momentum, arrays.public)
        public = arrays.public.copy()
        add_decoded(public, staged)
        return Arrays(version, arrays.master.copy(), arrays.momentum.copy(), public)

    def whole(self, p: Fragment) -> Flat:
        return self._arrays[p].public.copy()

    def flaw(self, p: Fragment, payload: Payload) -> str:
        try:
            wire, wanted = wire_of(payload, self._layout.sizes[p]), self._method.wire_up
        except CorruptPayload as error:
            return str(error)
        return "" if wire is wanted else f"{wire} bytes, the run's wire is {wanted}"

    def hold(self, p: Fragment, payload: Payload) -> Held[Payload]:
        payload = frozen(payload)
        return Held(p, payload, norms(payload, self._layout.fragments[p], self._spread))

    def norms(self, held: Held[Payload]) -> Sequence[float]:
        return norms(held.payload, self._layout.fragments[held.fragment], self._spread)

    def undo(self, p: Fragment) -> Callable[[], None]:
        arrays = self._arrays[p]
        master, momentum = arrays.master.copy(), arrays.momentum.copy()

        def undo() -> None:
            arrays.master[:], arrays.momentum[:] = master, momentum

        return undo

    def put_back(self, p: Fragment, stored: Arrays) -> None:
        arrays = self._arrays[p]
        arrays.master[:], arrays.momentum[:] = stored.master, stored.momentum

    def merge(
        self,
        order: Merge,
        parts: Sequence[Weighed[Payload, Flat]],
        trial: Sequence[Weighed[Payload, Flat]] | None,
    ) -> Staging[Payload]:
        """In a last round the merged delta is added as it is, and the momentum left alone."""
        p, rule, outer = order.fragment, self._method.merge_rule, self._method.outer
        arrays, pieces = self._arrays[p], self._layout.fragments[p]
        merging = [self._part(arrays, each) for each in parts]
        beside = None if trial is None else [self._part(arrays, each).payload for each in trial]
        if isinstance(outer, OuterRule) and not order.last:
            pointing = merge_into(
                arrays.master,
                arrays.momentum,
                rule=rule,
                outer=outer,
                pieces=pieces,
                parts=merging,
                spread=self._spread,
                trial=beside,
            )
        else:
            pointing = Directions((), 0)
            if beside is not None:
                pointing = directions(pieces, merging, beside, self._spread)
            delta = merged_of(rule, pieces, merging, self._spread)
            if order.last or isinstance(outer, OuterRule):
                np.add(arrays.master, delta, out=arrays.master)
            else:
                outer.step(arrays.master, arrays.momentum, delta)
        wire = self._method.wire_down
        payload, norm = encode_difference(wire, arrays.master, arrays.public)
        return Staging(payload, norm, *pointing)

    def _part(self, arrays: Arrays, each: Weighed[Payload, Flat]) -> Part:
        """What was handed in, as a difference to the anchor."""
        (p, payload, lengths), weight, base = each
        if base is None:
            return Part(payload, weight, lengths)
        delta = base - arrays.public
        add_decoded(delta, payload)
        moved = frozen(delta)
        return Part(moved, weight, norms(moved, self._layout.fragments[p], self._spread))

    def publish(self, p: Fragment, difference: Payload) -> None:
        add_decoded(self._arrays[p].public, difference)

    def links(self, p: Fragment) -> int:
        """A learner that lags behind is better off with the fragment, if that is smaller."""
        size, method = self._layout.sizes[p], self._method
        difference_bytes = method.wire_down.bytes_of(size)
        return worth_keeping(method.keep_differences, difference_bytes, Wire.F32.bytes_of(size))

    def nbytes(self, *former: Flat) -> int:
        own = [each for a in self._arrays.values() for each in (a.master, a.momentum, a.public)]
        return sum(each.nbytes for each in (*own, *former))
