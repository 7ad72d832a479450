"""The way in which a run merges: its rules, wires and outer optimizer, and those of state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cluster.shard.own_gate import OwnGate
from coordinator.codec import Sent, Wire, split, wire_of
from coordinator.errors import CorruptPayload, UserMistake
from coordinator.fragments import Flat
from coordinator.merge import MergeRule
from coordinator.outer import OuterRule
from coordinator.own_merge import MergePiece, OwnMerge
from islands.own_wire import AnyWire, OwnWire, decoded_of


class OuterOptimizer(Protocol):
    """An outer optimizer from outside this project; its state takes the place of our momentum."""

    def step(self, master: Flat, state: Flat, delta: Flat) -> None:
        """Move `master` by the merged `delta` and update `state`, both in place."""
        ...


AS_IT_IS = OuterRule(learning_rate=1.0, momentum=0.0, nesterov=False)
"""The outer step that adds the merged delta."""


@dataclass(frozen=True, slots=True)
class Method:
    """The way in which a run merges."""

    merge_rule: MergeRule | OwnMerge
    outer: OuterRule | OuterOptimizer
    wire_up: AnyWire
    wire_down: AnyWire
    keep_differences: int
    """Differences of each public fragment to keep, while they are smaller than the fragment."""
    wire_moments: Wire | None
    """The encoding of first moments in both directions; None if islands share none."""
    kappa: float
    """The exponent of radial-directional averaging (`coordinator.merge`)."""
    gate: OwnGate | None = None
    """The user's own gate of contributions; None if there is none."""

    def flaw(self, payload: Sent, public: Flat, pieces: Sequence[MergePiece]) -> str:
        """Return why a contribution does not have the run's encoding, or the gate refuses it.

        The text is empty if it may be merged. `public`, `pieces`: the fragment that it belongs to.
        """
        (difference, moments), size = split(payload), public.size
        try:
            if isinstance(self.wire_up, OwnWire):
                self.wire_up.decode(difference, size)
            elif (wire := wire_of(difference, size)) is not self.wire_up:
                return f"{wire} bytes, the run's wire is {self.wire_up}"
            if moments is not None and (wire := wire_of(moments, size)) is not self.wire_moments:
                return f"{wire} bytes, the run's wire is {self.wire_moments or 'for none'}"
        except (CorruptPayload, UserMistake) as error:
            return str(error)
        if self.gate is None:
            return ""
        return self.gate.refusal(decoded_of(self.wire_up, difference, size), public, pieces)

    def of_state(self) -> Method:
        """Return the way in which state merges: the weighted mean of its values, exact both ways.

        An outer step with momentum, or a rounded difference, could leave the range of the values
        that the islands measured.
        """
        return replace(
            self,
            merge_rule=MergeRule.MEAN,
            outer=AS_IT_IS,
            wire_up=Wire.F32,
            wire_down=Wire.F32,
            wire_moments=None,
            gate=None,
        )
