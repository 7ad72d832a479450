"""The bytes of the payloads that learners send and are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.codec import Wire
from coordinator.protocol import Contribution, Fragment, Publish
from coordinator.state import FragmentState
from islands.own_wire import AnyWire


@dataclass(frozen=True, slots=True)
class PayloadBytes:
    """The sizes of payloads in the encodings of one run."""

    sizes: Sequence[int]
    """Elements of each fragment."""
    down: AnyWire
    """The encoding of differences to learners."""
    moments: Wire | None
    """The encoding of shared moments; None if they are not shared."""
    state_fragment: Fragment | None
    """The fragment of the model state, if there is one (see `Layout`); it is sent in float32."""

    def published(self, fragment: FragmentState, order: Publish) -> int:
        """Return the bytes that each learner is sent; `fragment`: the state during its round."""
        size, round_ = self.sizes[order.fragment], fragment.round
        if order.fragment == self.state_fragment:
            return Wire.F32.bytes_of(size)
        if self.moments is None or round_ is None or round_.last:
            return self.down.bytes_of(size)
        shared = any(each.moments_norm is not None for each in round_.items)
        return self.down.bytes_of(size) + (self.moments.bytes_of(size) if shared else 0)

    def moments_in(self, contribution: Contribution) -> int:
        """Return the bytes of the first moments in a contribution."""
        if self.moments is None or contribution.moments_norm is None:
            return 0
        return self.moments.bytes_of(self.sizes[contribution.id.fragment])
