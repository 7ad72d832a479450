"""The training step of an island whose loop is the user's own: it gives the loop a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import jax
import numpy as np
from numpy.typing import NDArray
from optax import OptState

from coordinator.fragments import Flat
from islands.foreign_arrays import placed_on
from islands.inner import NO_DRAW, InnerState, Share, StepMeasures
from islands.loop_thread import LoopThread, LoopTurn
from islands.mesh import Devices
from islands.task import Batch, Params


@final
class LoopInner:
    """A `TrainingStep` that a loop computes; the loop has the state of its optimizer.

    The leaves of its parameters are those that the loop gave, of any library. `read` makes arrays
    on the island's devices of them, when a fragment is handed in or adopted.
    """

    shares: Sequence[Share] = ()
    """Nothing of the optimizer can be given to another learner."""

    def __init__(self, devices: Devices, thread: LoopThread) -> None:
        """Create it without starting the loop; `prepare` of the thread does that."""
        self.devices, self._thread = devices, thread

    def read(self, number: int, leaf: Any) -> jax.Array:
        """Return a leaf of the parameters on the devices, for `FragmentPort`."""
        return placed_on(leaf, self.devices.leaves[number])

    def start(self, params: Params, moments: OptState | None = None) -> InnerState:
        """Return a state with copied parameters; `moments` are ignored."""
        copied = jax.tree.map(self._copy, params, self.devices.params)
        return self.started(copied, moments)

    def started(self, params: Params, moments: OptState | None) -> InnerState:
        """Start from parameters that are on the devices already."""
        del moments
        return InnerState(params, ())

    def _copy(self, leaf: Any, where: jax.sharding.NamedSharding) -> jax.Array:
        return self.devices.put(np.array(leaf), where)  # a loop may change it in place

    def step(
        self, state: InnerState, batch: Batch, clock: int, draw: NDArray[np.uint32] = NO_DRAW
    ) -> tuple[InnerState, StepMeasures]:
        """Let the loop take a step, and wait for its answer.

        Errors: what the loop raises; `UserMistake` if it returns.
        """
        answer = self._thread.step(LoopTurn(state.params, batch, clock, draw))
        is_ready = getattr(answer.loss, "is_ready", lambda: True)  # a float always is
        return InnerState(answer.params, ()), StepMeasures(answer.loss, answer.tokens, is_ready())

    def moment(self, state: InnerState, number: int) -> NDArray[Any]:
        """Refuse: the learner's state has no moments."""
        raise IndexError(f"moment {number} of a loop")

    def accept(self, given: Sequence[NDArray[Any]]) -> OptState:
        """Refuse: the loop has its optimizer. Errors: `ValueError`."""
        raise ValueError(f"{len(given)} moments for a loop of the user's own")

    def place_moments(self, moments: OptState) -> OptState:
        """Return them: there are none."""
        return moments

    def place_flat(self, own: Flat, size: int) -> jax.Array:
        """Copy a fragment of this size to where `FragmentPort` needs it."""
        return self.devices.place_flat(own, size)
