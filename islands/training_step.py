"""The training step of a learner, as a protocol: our compiled one, or a loop of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import NDArray
from optax import OptState

from coordinator.fragments import Flat
from islands.inner import NO_DRAW, InnerState, Share, StepMeasures
from islands.mesh import Devices
from islands.task import Batch, Params


class TrainingStep(Protocol):
    """A step on an island's devices; `islands.inner.Inner` compiles one, `LoopInner` calls a loop.

    The methods that both share are documented in `Inner`.
    """

    @property
    def devices(self) -> Devices:
        """The devices of the island."""
        ...

    @property
    def shares(self) -> Sequence[Share]:
        """This host's share of each leaf of the optimizer's state; empty if a loop has it."""
        ...

    def start(self, params: Params, moments: OptState | None = None) -> InnerState:
        """Return a state with copied parameters, and with these moments."""
        ...

    def started(self, params: Params, moments: OptState | None) -> InnerState:
        """Start from parameters that are on the devices already."""
        ...

    def step(
        self, state: InnerState, batch: Batch, clock: int, draw: NDArray[np.uint32] = NO_DRAW
    ) -> tuple[InnerState, StepMeasures]:
        """Take one step."""
        ...

    def moment(self, state: InnerState, number: int) -> NDArray[Any]:
        """Copy this host's share of one leaf of the optimizer's state to the host."""
        ...

    def accept(self, given: Sequence[NDArray[Any]]) -> OptState:
        """Return moments that another learner gave, for `start`."""
        ...

    def place_moments(self, moments: OptState) -> OptState:
        """Return moments where the step needs them."""
        ...

    def place_flat(self, own: Flat, size: int) -> jax.Array:
        """Copy a fragment of this size to where `FragmentPort` needs it."""
        ...
