"""The arithmetic of a shard that holds arrays.

Each fragment has an fp32 master, the outer momentum, and the public fragment that all learners
share: 12 bytes a parameter, all three changed in place. A merge moves master and momentum. The
public fragment follows when the encoded difference to it is published. If islands share their
first moments, the mean that was published last is kept too, encoded.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from cluster.shard.arithmetic import Arithmetic, Held, Staging, Weighed
from cluster.shard.method import Method
from cluster.shard.shard import Shard
from cluster.storage.fragments import Arrays
from coordinator import kernels
from coordinator.alignment import AlignmentPart, Directions, directions
from coordinator.chain import worth_keeping
from coordinator.codec import (
    Payload,
    Sent,
    Wire,
    add_decoded,
    decode,
    encode,
    encode_difference,
    joined,
    split,
)
from coordinator.fragments import Flat, Layout, Leaf, cut
from coordinator.kernels import frozen
from coordinator.merge import MergeRule, merge_into, merged_of, norms
from coordinator.outer import OuterRule
from coordinator.own_merge import merge_pieces, outer_step
from coordinator.plain_sums import plain_sum
from coordinator.protocol import Fragment, Merge, Version
from coordinator.tiles import Spread
from islands.own_wire import difference_on, plain

importlib.import_module("numpy.random")  # else numba imports it on the thread that compiles first,
# and Python reports a deadlock if two threads import it at once
ArrayShard: TypeAlias = Shard[Sent, Sent, Flat, Arrays]


def first(flat: Flat, generation: int = 0) -> Arrays:
    """Return version number 0 of one fragment, with copied parameters and zero momentum."""
    return Arrays(
        Version(generation, 0),
        master=np.array(flat, np.float32),
        momentum=np.zeros(flat.shape, np.float32),
        public=np.array(flat, np.float32),
    )


def fresh(flats: Sequence[Flat], *, generation: int = 0) -> dict[Fragment, Arrays]:
    """Return the arrays of an initial model, copied: version number 0 of each fragment."""
    return {Fragment(p): first(flat, generation) for p, flat in enumerate(flats)}


def warm_up(wires: Iterable[Wire]) -> None:
    """Compile everything that a shard with these wires calls.

    This takes some seconds on a machine's first run, and a fraction of one later.
    """
    for wire in wires:
        layout = cut([Leaf(name, (kernels.BLOCK,)) for name in "ab"], 1)
        values = np.ones(layout.parameters, np.float32)
        master, momentum = values.copy(), values.copy()
        payload = frozen(encode(wire, values))
        parts = [AlignmentPart(payload, 0.2, norms(payload, layout.fragments[0]))] * 5
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


class ArrayArithmetic(Arithmetic[Sent, Sent, Flat, Arrays]):
    """The arithmetic on arrays of this host; `spread` divides large fragments among threads."""

    def __init__(self, layout: Layout, method: Method, spread: Spread) -> None:
        self._layout, self._spread = layout, spread
        self._state_fragment = layout.state_fragment
        self._method, self._state_method = method, method.of_state()
        self._arrays: dict[Fragment, Arrays] = {}

    def _method_of(self, p: Fragment) -> Method:
        return self._state_method if p == self._state_fragment else self._method

    def put(self, p: Fragment, stored: Arrays) -> None:
        """Take over these arrays; an array that is read-only is copied."""
        self._arrays[p] = Arrays(
            stored.version,
            master=np.require(stored.master, requirements="W"),
            momentum=np.require(stored.momentum, requirements="W"),
            public=np.require(stored.public, requirements="W"),
            moments=stored.moments,
        )

    def stored(self, p: Fragment, version: Version, staged: Sent | None) -> Arrays:
        """Return the arrays at `version`; with a staged difference, copies that have it applied."""
        arrays = self._arrays[p]
        if staged is None:
            return replace(arrays, version=version)
        public, (difference, shared) = arrays.public.copy(), split(staged)
        self._add(p, public, difference)
        moments = arrays.moments if shared is None else shared
        master, momentum = arrays.master.copy(), arrays.momentum.copy()
        return Arrays(version, master, momentum, public, moments)

    def whole(self, p: Fragment) -> Flat:
        """Return a copy of the public fragment."""
        return self._arrays[p].public.copy()

    def public(self, p: Fragment) -> Flat:
        """Return the public fragment, not copied."""
        return self._arrays[p].public

    def shared(self, p: Fragment) -> Payload | None:
        """Return the encoded mean of the first moments that was published last."""
        return self._arrays[p].moments

    def flaw(self, p: Fragment, payload: Sent) -> str:
        """Return why these bytes do not have the run's encoding; empty if they do."""
        public, pieces = self._arrays[p].public, self._layout.fragments[p]
        return self._method_of(p).flaw(payload, public, merge_pieces(self._layout.leaves, pieces))

    def hold(self, p: Fragment, payload: Sent) -> Held[Sent]:
        """Freeze the bytes, and measure the delta and the first moments beside it."""
        difference, moments = split(payload)
        difference, length = frozen(difference), None
        if moments is not None:
            moments = frozen(moments)
            length = math.hypot(*norms(moments, self._layout.fragments[p], self._spread))
        held = Held[Sent](p, joined(difference, moments), (), length)
        return held._replace(norms=self.norms(held))

    def norms(self, held: Held[Sent]) -> Sequence[float]:
        """Compute the norm of each piece of a delta that is held."""
        payload, p = split(held.payload)[0], held.fragment
        payload = plain(self._method_of(p).wire_up, payload, self._layout.sizes[p])
        return list(norms(payload, self._layout.fragments[p], self._spread))

    def undo(self, p: Fragment) -> Callable[[], None]:
        """Copy master and momentum, and return a function that restores them."""
        arrays = self._arrays[p]
        master, momentum = arrays.master.copy(), arrays.momentum.copy()

        def undo() -> None:
            arrays.master[:], arrays.momentum[:] = master, momentum

        return undo

    def put_back(self, p: Fragment, stored: Arrays) -> None:
        """Overwrite master and momentum with the stored ones."""
        arrays = self._arrays[p]
        arrays.master[:], arrays.momentum[:] = stored.master, stored.momentum

    def merge(
        self,
        order: Merge,
        parts: Sequence[Weighed[Sent, Flat]],
        trial: Sequence[Weighed[Sent, Flat]] | None,
    ) -> Staging[Sent]:
        """Merge the contributions and take the outer step; encode the step of the public fragment.

        In a last round the merged delta is added as it is, and the momentum does not change.
        """
        p, method = order.fragment, self._method_of(order.fragment)
        rule, outer, measured = method.merge_rule, method.outer, p != self._state_fragment
        arrays, pieces = self._arrays[p], self._layout.fragments[p]
        merging = [self._part(arrays, each) for each in parts]
        tried = None if trial is None else [self._part(arrays, each).payload for each in trial]
        if isinstance(rule, MergeRule) and isinstance(outer, OuterRule) and not order.last:
            measured_directions = merge_into(
                arrays.master,
                arrays.momentum,
                rule=rule,
                outer=outer,
                pieces=pieces,
                parts=merging,
                spread=self._spread,
                trial=tried,
                kappa=method.kappa,
            )
        else:
            measured_directions = Directions((), 0)
            if tried is not None:
                along = arrays.momentum if isinstance(outer, OuterRule) and not order.last else None
                measured_directions = directions(pieces, merging, tried, self._spread, along)
            if isinstance(rule, MergeRule):
                delta = merged_of(rule, pieces, merging, self._spread, method.kappa)
            else:
                pieces_of_rule = merge_pieces(self._layout.leaves, pieces)
                delta = rule.merged(pieces_of_rule, merging, arrays.momentum)
            if order.last:
                np.add(arrays.master, delta, out=arrays.master)
            elif isinstance(outer, OuterRule):
                measured_directions = outer_step(
                    arrays.master, arrays.momentum, delta, outer, measured_directions, self._spread
                )
            else:
                outer.step(arrays.master, arrays.momentum, delta)
        if not measured:  # islands differ around the mean of their state, and none is wrong
            measured_directions = Directions((), 0)
        payload, norm = difference_on(method.wire_down, arrays.master, arrays.public)
        moments = None if order.last else self._mean_moments(p, parts)
        return Staging(joined(payload, moments), norm, *measured_directions)

    def _mean_moments(self, p: Fragment, parts: Sequence[Weighed[Sent, Flat]]) -> Payload | None:
        """Return the encoded mean of the first moments that were handed in, weighted by share.

        Returns None if no contribution has moments, or if the mean is not finite.
        """
        pairs = [(each, split(each.held.payload)[1]) for each in parts]
        weighted_moments = [
            (each.weight, moments) for each, moments in pairs if moments is not None
        ]
        wire = self._method_of(p).wire_moments
        if not weighted_moments or wire is None:
            return None
        total = plain_sum(weight for weight, _ in weighted_moments)
        merging = [
            AlignmentPart(moments, weight / total, ()) for weight, moments in weighted_moments
        ]
        mean = merged_of(MergeRule.MEAN, self._layout.fragments[p], merging, self._spread)
        return encode(wire, mean) if np.isfinite(mean).all() else None

    def _part(self, arrays: Arrays, each: Weighed[Sent, Flat]) -> AlignmentPart:
        """Return a contribution as a difference to the anchor; state comes as its values."""
        (p, sent, lengths, _), weight, base = each
        payload = plain(self._method_of(p).wire_up, split(sent)[0], arrays.master.size)
        if p == self._state_fragment:
            values = decode(payload, arrays.master.size)
            return AlignmentPart(frozen(values - arrays.master), weight, lengths)
        if base is None:
            return AlignmentPart(payload, weight, lengths)
        delta = base - arrays.public
        add_decoded(delta, payload)
        difference = frozen(delta)
        return AlignmentPart(
            difference, weight, norms(difference, self._layout.fragments[p], self._spread)
        )

    def publish(self, p: Fragment, difference: Sent) -> Sent:
        """Add the difference to the public fragment; return it without the moments.

        Moments are left out because those of an earlier version are of no use to a learner.
        """
        payload, moments = split(difference)
        self._add(p, self._arrays[p].public, payload)
        if moments is not None:
            self._arrays[p] = replace(self._arrays[p], moments=moments)
        return payload

    def _add(self, p: Fragment, total: Flat, difference: Payload) -> None:
        """Add an encoded difference of the public fragment to `total`, in place."""
        add_decoded(total, plain(self._method_of(p).wire_down, difference, total.size))

    def links(self, p: Fragment) -> int:
        """Return how many differences are together smaller than the whole fragment in f32.

        If the fragment is smaller, a learner that lags behind fetches that instead.
        """
        size, method = self._layout.sizes[p], self._method_of(p)
        difference_bytes = method.wire_down.bytes_of(size)
        return worth_keeping(method.keep_differences, difference_bytes, Wire.F32.bytes_of(size))

    def nbytes(self, *former: Flat) -> int:
        """Return the bytes of all arrays, shared moments and these earlier public fragments."""
        own_arrays = [
            each for a in self._arrays.values() for each in (a.master, a.momentum, a.public)
        ]
        moment_bytes = [a.moments.nbytes for a in self._arrays.values() if a.moments is not None]
        return sum(each.nbytes for each in (*own_arrays, *former)) + sum(moment_bytes)
