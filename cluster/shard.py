"""The shard: holds the arrays, does the arithmetic, decides nothing.

Per fragment: the fp32 master, the outer momentum, and the public fragment that all learners share
(12 bytes a parameter), plus what was handed in for merges to come. A merged version is *staged*:
it becomes public only when the syncer has it published, so that nothing is seen before it is
durable. One thread at a time may call; reading a public fragment is safe from any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cluster.store import Arrays
from coordinator import outer
from coordinator.codec import Payload, Wire, decode, encode
from coordinator.errors import CorruptPayload
from coordinator.fragments import Flat, Layout
from coordinator.merge import MergeRule, merge, norm
from coordinator.outer import OuterRule
from coordinator.protocol import (
    Anchor,
    Contribution,
    Fragment,
    HandIn,
    Merge,
    Publication,
    Publish,
    Reference,
    Version,
)


@dataclass(slots=True)
class _Holding:
    """One fragment; master and momentum run ahead of `version` while a version is staged.

    `former`: public fragments that a contribution may still start from, by version, oldest first.
    """

    version: Version
    master: Flat
    momentum: Flat
    public: Flat
    staged: tuple[Version, Flat, Payload] | None = None
    former: dict[Version, Flat] = field(default_factory=dict[Version, Flat])


def fresh(flats: Sequence[Flat], *, generation: int = 0) -> dict[Fragment, Arrays]:
    """The arrays of an initial model, copied: number 0 of each fragment."""
    return {
        Fragment(p): Arrays(
            Version(generation, 0),
            master=np.array(flat, np.float32),
            momentum=np.zeros(flat.shape, np.float32),
            public=np.array(flat, np.float32),
        )
        for p, flat in enumerate(flats)
    }


class Shard:
    """All fragments of a model, or some of them."""

    def __init__(
        self,
        layout: Layout,
        arrays: Mapping[Fragment, Arrays],
        *,
        merge_rule: MergeRule,
        outer_rule: OuterRule,
        wire_down: Wire,
        anchor: Anchor = Anchor.BASE,
        max_staleness: int = 0,
    ) -> None:
        """Own these arrays, from here on.

        With the anchor `CURRENT` the public fragments of `max_staleness` versions before the
        present one are kept, 4 bytes a parameter each: the gate admits nothing older.
        """
        self._layout = layout
        self._merge_rule, self._outer_rule, self._wire_down = merge_rule, outer_rule, wire_down
        self._kept = max_staleness if anchor is Anchor.CURRENT else 0
        self._anchor = anchor
        self._holdings = {p: _hold(each) for p, each in arrays.items()}
        self._inbox: dict[Reference, tuple[Fragment, Payload]] = {}

    def receive(self, hand_in: HandIn, payload: Payload) -> Contribution:
        """Keep what was handed in, measured; the norm of what cannot be decoded is not a number."""
        p = hand_in.id.fragment
        try:
            size = float(norm(decode(payload, self._layout.sizes[p])))
        except CorruptPayload:
            size = float("nan")
        reference = Reference(str(hand_in.id))
        self._inbox[reference] = (p, payload)
        return Contribution(
            id=hand_in.id,
            base=hand_in.base,
            since_step=hand_in.since_step,
            tokens=hand_in.tokens,
            fingerprint=hand_in.fingerprint,
            progress=hand_in.progress,
            norm=size,
            bytes=payload.nbytes,
            reference=reference,
        )

    def drop(self, reference: Reference) -> None:
        """Free what will not be merged; unknown references are free already."""
        self._inbox.pop(reference, None)

    def merge(self, order: Merge) -> None:
        """Merge the contributions named, in their order; stage the next version."""
        p = order.fragment
        holding, pieces = self._holdings[p], self._layout.fragments[p]
        deltas = [self._delta(holding, item.contribution) for item in order.items]
        delta = merge(self._merge_rule, pieces, deltas, [item.weight for item in order.items])
        outer.step(self._outer_rule, holding.master, holding.momentum, delta)
        payload = encode(self._wire_down, holding.master - holding.public)
        public = holding.public + decode(payload, holding.public.size)
        holding.staged = (order.version, public, payload)
        for item in order.items:
            self.drop(item.contribution.reference)

    def _delta(self, holding: _Holding, contribution: Contribution) -> Flat:
        """What was handed in, as a difference to the anchor."""
        delta = decode(self._inbox[contribution.reference][1], holding.master.size)
        if self._anchor is Anchor.BASE or contribution.base == holding.version:
            return delta
        base = holding.former.get(contribution.base)
        assert base is not None, f"{contribution.id} starts from {contribution.base}, not kept"
        return np.add(delta, base - holding.public, dtype=np.float32)

    def payload(self, reference: Reference) -> Payload:
        """What was handed in, as it was encoded."""
        return self._inbox[reference][1]

    def arrays(self, p: Fragment) -> Arrays:
        """The fragment as it is; not to be called while a version is staged."""
        holding = self._holdings[p]
        assert holding.staged is None, f"fragment {p} has a version that is not public"
        return Arrays(holding.version, holding.master, holding.momentum, holding.public)

    def staged(self, p: Fragment) -> Arrays:
        """The merged version that is not public yet, to be made durable."""
        holding = self._holdings[p]
        assert holding.staged is not None, f"fragment {p} has no version that is not public"
        version, public, _ = holding.staged
        return Arrays(version, holding.master, holding.momentum, public)

    def recover(self, p: Fragment, version: Version, stored: Callable[[], Arrays]) -> Version:
        """Go back to a published version: as it is in memory, or as it is `stored`.

        Returns the version that was to be had. What was handed in is void, and so is every life
        that started from a version before.
        """
        self._inbox = {r: held for r, held in self._inbox.items() if held[0] != p}
        holding = self._holdings[p]
        holding.former.clear()
        if holding.version != version or holding.staged is not None:
            self._holdings[p] = _hold(stored())
        return self._holdings[p].version

    def publish(self, order: Publish) -> tuple[Publication, Payload]:
        """Make the staged version public; returns what to send to every learner."""
        holding = self._holdings[order.fragment]
        assert holding.staged is not None, f"{order.version} was never merged"
        version, public, payload = holding.staged
        assert version == order.version, f"{version} is staged, {order.version} is to be published"
        if self._kept:
            holding.former[holding.version] = holding.public
            for old in list(holding.former)[: -self._kept]:
                del holding.former[old]
        holding.version, holding.public, holding.staged = version, public, None
        said = Publication(order.fragment, version, order.previous, order.merged)
        return said, payload

    def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]:
        """Public fragments at their present versions; never written to again, so no copies."""
        return [(h.version, h.public) for h in (self._holdings[p] for p in fragments)]

    @property
    def bytes_held(self) -> int:
        """Of all arrays, and of what was handed in and is not merged yet."""
        arrays = sum(h.master.nbytes * (3 + len(h.former)) for h in self._holdings.values())
        return arrays + sum(payload.nbytes for _, payload in self._inbox.values())


def _hold(arrays: Arrays) -> _Holding:
    return _Holding(
        arrays.version,
        master=np.require(arrays.master, requirements="W"),
        momentum=np.require(arrays.momentum, requirements="W"),
        public=arrays.public,
    )
