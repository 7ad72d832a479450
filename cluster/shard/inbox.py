"""The inbox of a shard: contributions that wait for a merge, measured when they arrived."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from cluster.shard.arithmetic import Arithmetic, Held, P
from coordinator.errors import Misordered
from coordinator.protocol import (
    Contribution,
    ContributionId,
    Fragment,
    HandIn,
    Merge,
    Reference,
)


class Inbox(Mapping[Reference, Held[P]]):
    """The contributions that were handed in and neither merged nor dropped, by reference.

    A learner may send the same contribution twice, even with other bytes. Each arrival therefore
    has a reference of its own, and the second copy is dropped without the first one.
    """

    def __init__(self) -> None:
        self._held: dict[Reference, Held[P]] = {}
        self._arrivals = 0

    def __getitem__(self, reference: Reference) -> Held[P]:
        return self._held[reference]

    def __iter__(self) -> Iterator[Reference]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads together."""
        return sum(held.payload.nbytes for held in self._held.values())

    def receive(
        self, hand_in: HandIn, payload: P, arithmetic: Arithmetic[P, Any, Any, Any], flaw: str = ""
    ) -> Contribution:
        """Measure a payload and hold it.

        A payload that does not have the run's encoding is not held, nor is one with a known `flaw`;
        the contribution then has the reason in `flaw`, and its norm is not a number.
        """
        p, lengths, moments = hand_in.id.fragment, [math.nan], None
        flaw = flaw or arithmetic.flaw(p, payload)
        self._arrivals += 1
        reference = Reference(f"{hand_in.id}@{self._arrivals}")
        if not flaw:
            held = self._held[reference] = arithmetic.hold(p, payload)
            lengths, moments = held.norms, held.moments
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
            moments_norm=moments,
        )

    def payload(self, reference: Reference) -> P:
        """Return a payload as it was handed in, encoded.

        Errors: `Misordered` if it is not held.
        """
        if (held := self._held.get(reference)) is None:
            raise Misordered(f"nothing is held of {reference}")
        return held.payload

    def drop(self, reference: Reference) -> None:
        """Free a contribution that will not be merged; an unknown reference is a no-op."""
        self._held.pop(reference, None)

    def forget(self, fragments: Collection[Fragment]) -> None:
        """Free all contributions to these fragments."""
        self._held = {r: held for r, held in self._held.items() if held.fragment not in fragments}

    def check(self, order: Merge) -> None:
        """Check that every contribution that an order names is held.

        Errors: `Misordered`.
        """
        named = [*(item.contribution for item in order.items), *order.trial]
        if missing := [c.id for c in named if c.reference not in self._held]:
            raise Misordered(f"{order}: nothing is held of {missing}")

    def spoiled(
        self, order: Merge, arithmetic: Arithmetic[P, Any, Any, Any]
    ) -> tuple[ContributionId, ...]:
        """Return the contributions of an order whose norms have changed since they arrived."""
        held = {c.id: self._held[c.reference] for c, _ in order.items}
        return tuple(c for c, each in held.items() if arithmetic.norms(each) != each.norms)
