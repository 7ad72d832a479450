"""The shard: holds the arrays, does the arithmetic, decides nothing.

Per fragment: the fp32 master, the outer momentum, and the public fragment that all learners share
(12 bytes a parameter), all three changed in place; its last differences, and what was handed in for
merges to come. A merged version is *staged*: only its encoded difference to the public fragment
exists, which is added when the syncer has it published, so that nothing is seen before it is
durable. One thread at a time may call; `whole` and `missed` may be called from any.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from cluster.storage.fragments import Arrays
from coordinator import kernels
from coordinator.chain import Kept, between, lengthened, worth_keeping
from coordinator.codec import (
    Payload,
    Wire,
    add_decoded,
    decode,
    encode,
    encode_difference,
    wire_of,
)
from coordinator.direction import PARTICIPANTS
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
from coordinator.protocol import (
    Anchor,
    Contribution,
    ContributionId,
    Fragment,
    HandIn,
    Item,
    Merge,
    Merged,
    Publication,
    Publish,
    Reference,
    Unsound,
    Version,
)


@dataclass(slots=True)
class _Holding:
    """One fragment; master and momentum run ahead of `version` while a version is staged.

    `former`: public fragments that a contribution may still start from, by version, oldest first.
    `chain`: the last differences of the public one.
    """

    version: Version
    master: Flat
    momentum: Flat
    public: Flat
    staged: tuple[Version, Payload] | None = None
    former: dict[Version, Flat] = field(default_factory=dict[Version, Flat])
    chain: tuple[Kept[Payload], ...] = ()


class OuterOptimizer(Protocol):
    """An outer optimizer that is not ours; its state lies where ours has the momentum."""

    def step(self, master: Flat, state: Flat, delta: Flat) -> None:
        """Move `master` by the merged `delta`, updating `state`; both in place."""
        ...


class _Held(NamedTuple):
    """What was handed in and not merged yet, with the norm of each piece."""

    fragment: Fragment
    payload: Payload
    norms: Sequence[float]


def fresh(flats: Sequence[Flat], *, generation: int = 0) -> dict[Fragment, Arrays]:
    """The arrays of an initial model, copied: number 0 of each fragment."""
    return {Fragment(p): first(flat, generation) for p, flat in enumerate(flats)}


def first(flat: Flat, generation: int = 0) -> Arrays:
    """Number 0 of one fragment."""
    return Arrays(
        Version(generation, 0),
        master=np.array(flat, np.float32),
        momentum=np.zeros(flat.shape, np.float32),
        public=np.array(flat, np.float32),
    )


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


class Shard:
    """All fragments of a model, or some of them."""

    def __init__(
        self,
        layout: Layout,
        arrays: Mapping[Fragment, Arrays],
        *,
        merge_rule: MergeRule,
        outer: OuterRule | OuterOptimizer,
        wire_up: Wire,
        wire_down: Wire,
        anchor: Anchor = Anchor.BASE,
        max_staleness: int = 0,
        keep_differences: int = 0,
        spread: Spread = map,
    ) -> None:
        """Own these arrays, from here on; `spread` gives the work on large fragments to threads.

        With the anchor `CURRENT` the public fragments of `max_staleness` versions before the
        present one are kept, 4 bytes a parameter each: the gate admits nothing older.
        `keep_differences`: of each public fragment, where they weigh less than the fragment.
        """
        self._layout = layout
        self._merge_rule, self._outer = merge_rule, outer
        self._wire_up, self._wire_down = wire_up, wire_down
        self._kept = max_staleness if anchor is Anchor.CURRENT else 0
        self._links = [
            worth_keeping(keep_differences, wire_down.bytes_of(size), Wire.F32.bytes_of(size))
            for size in layout.sizes
        ]
        self._anchor = anchor
        self._holdings = {p: _hold(each) for p, each in arrays.items()}
        self._inbox: dict[Reference, _Held] = {}
        self._spread, self._publishing = spread, threading.Lock()

    def receive(self, hand_in: HandIn, payload: Payload) -> Contribution:
        """Keep what was handed in, measured; of what the run's wire does not have nothing is kept,
        and the contribution says why (`flaw`)."""
        p, lengths = hand_in.id.fragment, [math.nan]
        reference, flaw = Reference(str(hand_in.id)), self._flaw(p, payload)
        if not flaw:
            payload = frozen(payload)
            lengths = norms(payload, self._layout.fragments[p], self._spread)
            self._inbox[reference] = _Held(p, payload, lengths)
        return Contribution(
            id=hand_in.id,
            base=hand_in.base,
            since_step=hand_in.since_step,
            tokens=hand_in.tokens,
            fingerprint=hand_in.fingerprint,
            progress=hand_in.progress,
            norm=math.hypot(*lengths),
            bytes=payload.nbytes,
            reference=reference,
            flaw=flaw,
        )

    def _flaw(self, p: Fragment, payload: Payload) -> str:
        """Why these bytes are not of the run's wire; empty if they are."""
        try:
            wire = wire_of(payload, self._layout.sizes[p])
        except CorruptPayload as error:
            return str(error)
        return "" if wire is self._wire_up else f"{wire} bytes, the run's wire is {self._wire_up}"

    def drop(self, reference: Reference) -> None:
        """Free what will not be merged; unknown references are free already."""
        self._inbox.pop(reference, None)

    def merge(self, order: Merge, before: Callable[[], Arrays] | None = None) -> Merged | Unsound:
        """Merge the contributions named, in their order; stage the next version if its step is
        finite and no longer than the order's limit, else go back and keep the contributions.

        `before`: fetches the fragment as it was published last, to go back to; without it master
        and momentum are copied first, 8 bytes an element until this returns. In a last round the
        merged delta is added as it is, and the momentum left alone.
        """
        p = order.fragment
        holding, pieces = self._holdings[p], self._layout.fragments[p]
        copies = None if before else (holding.master.copy(), holding.momentum.copy())
        parts = [self._part(holding, item) for item in order.items]
        trial = self._on_trial(holding, order)
        if isinstance(self._outer, OuterRule) and not order.last:
            pointing = merge_into(
                holding.master,
                holding.momentum,
                rule=self._merge_rule,
                outer=self._outer,
                pieces=pieces,
                parts=parts,
                spread=self._spread,
                trial=trial,
            )
        else:
            pointing = Directions((), 0)
            if trial is not None:
                pointing = directions(pieces, parts, trial, self._spread)
            delta = merged_of(self._merge_rule, pieces, parts, self._spread)
            if order.last or isinstance(self._outer, OuterRule):
                holding.master += delta
            else:
                self._outer.step(holding.master, holding.momentum, delta)
        payload, norm = encode_difference(self._wire_down, holding.master, holding.public)
        if not norm <= order.limit or not math.isfinite(norm):
            if before is not None:
                kept = before()
                assert kept.version == holding.version, f"{kept.version}, not {holding.version}"
                copies = kept.master, kept.momentum
            assert copies is not None
            holding.master[:], holding.momentum[:] = copies
            return Unsound(p, order.version, norm, self._spoiled(order))
        holding.staged = (order.version, payload)
        for item in order.items:
            self.drop(item.contribution.reference)
        return Merged(p, order.version, norm, *pointing)

    def _spoiled(self, order: Merge) -> tuple[ContributionId, ...]:
        """Which contributions of an order have other norms now than when they arrived."""
        pieces = self._layout.fragments[order.fragment]
        held = {c.id: self._inbox[c.reference] for c, _ in order.items}
        return tuple(
            said
            for said, each in held.items()
            if norms(each.payload, pieces, self._spread) != each.norms
        )

    def _on_trial(self, holding: _Holding, order: Merge) -> Sequence[Payload] | None:
        """What is measured beside a merge; None if directions are not wanted, or there are too few
        contributions to say who points the wrong way."""
        few = len(order.items) + len(order.trial) < PARTICIPANTS or len(order.items) < 2
        if few or not order.measure:
            return None
        return [self._part(holding, Item(c, 0.0)).payload for c in order.trial]

    def _part(self, holding: _Holding, item: Item) -> Part:
        """Return what was handed in, as a difference to the anchor."""
        contribution = item.contribution
        p, payload, lengths = self._inbox[contribution.reference]
        if self._anchor is Anchor.BASE or contribution.base == holding.version:
            return Part(payload, item.weight, lengths)
        base = holding.former.get(contribution.base)
        assert base is not None, f"{contribution.id} starts from {contribution.base}, not kept"
        delta = base - holding.public
        add_decoded(delta, payload)
        moved = frozen(delta)
        return Part(moved, item.weight, norms(moved, self._layout.fragments[p], self._spread))

    def payload(self, reference: Reference) -> Payload:
        """What was handed in, as it was encoded."""
        return self._inbox[reference].payload

    def version(self, p: Fragment) -> Version:
        """The public one."""
        return self._holdings[p].version

    def arrays(self, p: Fragment) -> Arrays:
        """The fragment as it is; not to be called while a version is staged."""
        holding = self._holdings[p]
        assert holding.staged is None, f"fragment {p} has a version that is not public"
        return Arrays(holding.version, holding.master, holding.momentum, holding.public)

    def staged(self, p: Fragment) -> Arrays:
        """The merged version that is not public yet, to be made durable."""
        holding = self._holdings[p]
        assert holding.staged is not None, f"fragment {p} has no version that is not public"
        version, payload = holding.staged
        public = holding.public + decode(payload, holding.public.size)
        return Arrays(version, holding.master, holding.momentum, public)

    def recover(self, p: Fragment, version: Version, stored: Callable[[], Arrays]) -> Version:
        """Go back to a published version: as it is in memory, or as it is `stored`.

        Returns the version that was to be had. What was handed in is void, and so is every life
        that started from a version before.
        """
        self._inbox = {r: held for r, held in self._inbox.items() if held.fragment != p}
        holding = self._holdings[p]
        holding.former.clear()
        holding.chain = ()
        if holding.version != version or holding.staged is not None:
            self._holdings[p] = _hold(stored())
        return self._holdings[p].version

    def publish(self, order: Publish) -> tuple[Publication, Payload]:
        """Make the staged version public; returns what to send to every learner."""
        holding = self._holdings[order.fragment]
        assert holding.staged is not None, f"{order.version} was never merged"
        version, payload = holding.staged
        assert version == order.version, f"{version} is staged, {order.version} is to be published"
        if self._kept:
            holding.former[holding.version] = holding.public.copy()
            for old in list(holding.former)[: -self._kept]:
                del holding.former[old]
        kept = Kept(holding.version, version, payload)
        with self._publishing:
            add_decoded(holding.public, payload)
            holding.version, holding.staged = version, None
        holding.chain = lengthened(holding.chain, kept, self._links[order.fragment])
        said = Publication(order.fragment, version, order.previous, order.merged)
        return said, payload

    def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]:
        """Copies of public fragments, with their present versions."""
        with self._publishing:
            return [(h.version, h.public.copy()) for h in (self._holdings[p] for p in fragments)]

    def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Payload] | tuple[Version, Flat]:
        """The differences that lead from one version to another, in order; the public fragment as
        it is now, if they are not kept."""
        found = between(self._holdings[p].chain, older, newer)
        return self.whole([p])[0] if found is None else found

    @property
    def bytes_held(self) -> int:
        """Of all arrays, the differences kept, and what was handed in and is not merged yet."""
        arrays = [
            array
            for h in self._holdings.values()
            for array in (h.master, h.momentum, h.public, *h.former.values())
        ]
        kept = [link.difference for h in self._holdings.values() for link in h.chain]
        under_way = [h.staged[1] for h in self._holdings.values() if h.staged is not None]
        handed_in = [held.payload for held in self._inbox.values()]
        return sum(each.nbytes for each in (*arrays, *kept, *under_way, *handed_in))


def _hold(arrays: Arrays) -> _Holding:
    return _Holding(
        arrays.version,
        master=np.require(arrays.master, requirements="W"),
        momentum=np.require(arrays.momentum, requirements="W"),
        public=np.require(arrays.public, requirements="W"),
    )
