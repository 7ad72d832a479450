"""The inner step: one update of one learner, compiled; `(state, batch) -> (state, measures)`.

The learning rate follows the learner's *clock*, an argument, and not the optimizer's own count. So
a learner that rejoins with fresh moments has the others' rate, and an adopted fragment never
restarts the schedule. If clock and count agree, an update of AdamW is, bit for bit,
`optax.adamw(schedule)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from coordinator.fragments import Flat, Piece
from islands.flat_form import flat_form
from islands.gradients import ScaledGradients, scaled_gradients_of, with_state
from islands.loss_scale import DynamicScale, first_scale, unless_overflow
from islands.losses import Metrics
from islands.mesh import Devices, on_host
from islands.named_arguments import NamedArguments, with_key
from islands.optimizer import OptimizerSpec, direction, updated
from islands.randomness import NO_DRAWS
from islands.task import Batch, Params, Task
from islands.windows import Lying

Shapes: TypeAlias = tuple[tuple[tuple[int, ...], str], ...]
NO_DRAW = NO_DRAWS.at(0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class InnerState:
    """The state that a step changes: parameters (float32) and moments, both pytrees on the devices.

    It is donated to each step: to read it between two steps, copy it.
    """

    params: Params
    opt_state: optax.OptState
    scale: DynamicScale | None = None
    """The dynamic loss scale; None if the scale is constant."""


@dataclass(frozen=True, slots=True)
class StepMeasures:
    """The measurements of a step."""

    loss: jax.Array | float
    """Loss before the step, in nats per token: a scalar that may still be computed."""
    tokens: int | None = None
    """Tokens that the step trained; None: the task counts those of the batch."""
    computed: bool = False
    """Whether the call returned only after the step was computed."""
    metrics: Metrics = field(default_factory=dict[str, jax.Array])
    """The metrics of the loss: scalars that may still be computed."""


class Share(NamedTuple):
    """A host's share of a leaf of `size` elements: those from `start` to `stop`, in flat form."""

    start: int
    """First element of the share."""
    stop: int
    """End of the share."""
    size: int
    """Elements of the whole leaf."""
    everywhere: bool
    """Whether all hosts have the whole leaf."""


class Inner:
    """The compiled inner step of a task on an island's devices.

    On several devices the batch is split along its first axis, and parameters and moments as the
    island's mesh requires (the compiler inserts the sums). No method waits for the devices, except
    those that copy to the host.
    """

    def __init__(
        self,
        task: Task,
        spec: OptimizerSpec,
        devices: Devices | None = None,
        accumulate: int = 1,
    ) -> None:
        """Create it; `devices`: None for all of this process, with everything split over them.

        `accumulate`: parts of a batch that are computed one after another (`islands.gradients`).
        """
        self._task, self._spec = task, spec
        self.devices = devices or Devices(task)
        self._compiled: dict[Shapes, Any] = {}
        self._direction = direction(spec, task)
        self._gradients = scaled_gradients_of(task, accumulate)
        self._named = NamedArguments(task, self.devices)
        self._forms: dict[tuple[tuple[int, ...], NamedSharding], tuple[Any, Any]] = {}

    def start(self, params: Params, moments: optax.OptState | None = None) -> InnerState:
        """Return a state on the devices with copied parameters; moments are zero unless given.

        Moments that are already on the devices are donated to the first step.
        """
        return self.started(self.place(params), moments)

    def started(self, params: Params, moments: optax.OptState | None) -> InnerState:
        """Start from parameters that are already on the devices, and donate them."""
        placed = self._fresh(params) if moments is None else self.place_moments(moments)
        return InnerState(
            params, placed, first_scale(self._spec.loss_scale, self.devices.everyones)
        )

    # --- moments for another learner --------------------------------------------------------------

    @property
    def shares(self) -> Sequence[Share]:
        """This host's share of each leaf of the optimizer's state; all hosts have a scalar."""
        return self._shares

    @cached_property
    def _shares(self) -> list[Share]:
        found = list[Share]()
        for leaf in jax.tree.leaves(self._like.opt_state):
            own = self.devices.own(leaf.size) if leaf.ndim else slice(0, 1)
            found.append(Share(own.start, own.stop, leaf.size, not leaf.ndim))
        return found

    def moment(self, state: InnerState, number: int) -> NDArray[Any]:
        """Copy this host's share of one leaf of the optimizer's state to the host.

        A copy of all leaves together on the devices would cost as much as two thirds of the memory
        for training. Several hosts must copy the same leaves in the same order.
        """
        leaf = jax.tree.leaves(state.opt_state)[number]
        if leaf.is_fully_addressable:
            return np.array(leaf).reshape(-1)
        if not leaf.ndim:
            return np.array(leaf.addressable_data(0)).reshape(-1)
        share = self.shares[number]
        flat = self.formed(leaf, leaf.sharding)[0](leaf)
        return np.array(on_host(flat)[: share.stop - share.start])

    def moments(self, state: InnerState) -> list[NDArray[Any]]:
        """Copy this host's share of all leaves."""
        return [self.moment(state, number) for number in range(len(self.shares))]

    def accept(self, given: Sequence[NDArray[Any]]) -> optax.OptState:
        """Return moments that another learner gave, still on the host, for `start`.

        `given`: this host's share of each leaf.

        Errors: `ValueError` if they are of another shape or type, or not finite.
        """
        leaves, structure = jax.tree.flatten(self._like.opt_state)
        sizes = [share.stop - share.start for share in self.shares]
        wanted = [((size,), x.dtype) for size, x in zip(sizes, leaves, strict=True)]
        if [(x.shape, x.dtype) for x in given] != wanted:
            raise ValueError("moments of another model or optimizer")
        if not all(np.isfinite(leaf).all() for leaf in given):
            raise ValueError("moments that are not finite")
        return jax.tree.unflatten(structure, given)

    def _whole(self, share: NDArray[Any], like: Any, where: NamedSharding) -> jax.Array:
        """Return a leaf on the devices, from this host's share of it."""
        if like.ndim and self.devices.shared:
            blank = jax.jit(partial(jnp.zeros, like.shape, like.dtype), out_shardings=where)()
            return self.formed(like, where)[1](blank, self.devices.place_flat(share, like.size))
        return self.devices.put(share.reshape(like.shape), where)

    def formed(self, leaf: Any, where: NamedSharding) -> tuple[Any, Any]:
        """Return compiled functions: a leaf of this sharding to its flat form, and back again.

        The second function donates the leaf.
        """
        if (key := (leaf.shape, where)) not in self._forms:
            piece = Piece(0, None, 0, leaf.shape[0], leaf.shape, embedding=False)
            form = flat_form([piece], [Lying(leaf.shape, where)], self.devices)
            take = jax.jit(lambda leaf: form.take([leaf]), out_shardings=self.devices.flat)
            put = jax.jit(
                lambda leaf, flat: form.put([leaf], flat)[0], donate_argnums=0, out_shardings=where
            )
            self._forms[key] = take, put
        return self._forms[key]

    # --- placement --------------------------------------------------------------------------------

    @cached_property
    def _like(self) -> InnerState:
        """Shapes and types of a state."""
        shapes = self._task.shapes
        scale = jax.eval_shape(lambda: first_scale(self._spec.loss_scale, jnp.asarray))
        return InnerState(shapes, jax.eval_shape(self._direction.init, shapes), scale)

    @cached_property
    def _where(self) -> InnerState:
        """The sharding of each leaf of a state."""
        scale = jax.tree.map(lambda _: self.devices.everywhere, self._like.scale)
        return InnerState(self.devices.params, self.devices.alike(self._like.opt_state), scale)

    @cached_property
    def _fresh(self) -> Any:
        return jax.jit(self._direction.init, out_shardings=self._where.opt_state)

    def place(self, tree: Params) -> Params:
        """Copy parameters to where the step needs them."""
        return jax.tree.map(self._copy, tree, self.devices.params)

    def place_flat(self, own: Flat, size: int) -> jax.Array:
        """Copy a fragment of this size, or this host's range, to where `FragmentPort` needs it."""
        return self.devices.place_flat(own, size)

    def place_moments(self, moments: optax.OptState) -> optax.OptState:
        """Return moments where the step needs them.

        Moments that are there already are donated; those from `accept` are copied.
        """
        like, where = self._like.opt_state, self._where.opt_state
        return jax.tree.map(self._put, moments, like, where)

    def _copy(self, leaf: NDArray[Any] | jax.Array, where: NamedSharding) -> jax.Array:
        if isinstance(leaf, jax.Array):
            return jax.device_put(jnp.array(leaf), where)
        return self.devices.put(leaf, where)

    def _put(
        self, leaf: NDArray[Any] | jax.Array, like: jax.ShapeDtypeStruct, where: NamedSharding
    ) -> jax.Array:
        if isinstance(leaf, jax.Array):
            return jax.device_put(leaf, where)
        return self._whole(leaf, like, where)

    def compile(self, batch: Batch) -> None:
        """Compile the step and the placing of batches; only the shapes of `batch` matter.

        Errors: `UserMistake` if the batch cannot be split evenly over the devices.
        """
        for leaf in jax.tree.leaves(batch):
            self.devices.check_batch(leaf.shape[0])
        everywhere = self.devices.everywhere
        step = jax.jit(
            partial(_stepped, self._spec, self._direction, self._gradients),
            in_shardings=(self._where, self.devices.batch, everywhere, None),
            out_shardings=(self._where, everywhere, everywhere),
            donate_argnums=0,
        )
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
        clock = jax.ShapeDtypeStruct((), jnp.int32)
        self.devices.split(batch)
        named = self._named.at(NO_DRAW)
        self._compiled[_shapes(batch)] = step.lower(self._like, like, clock, named).compile()

    def step(
        self, state: InnerState, batch: Batch, clock: int, draw: NDArray[np.uint32] = NO_DRAW
    ) -> tuple[InnerState, StepMeasures]:
        """Dispatch one inner step at the learning rate of `clock`; `state` is donated.

        Batches of a new shape are compiled first. `draw`: the words of the step's key, uint32 [4],
        for a loss that draws (`islands.randomness`).
        """
        if (shapes := _shapes(batch)) not in self._compiled:
            self.compile(batch)
        batch = self.devices.split(batch)
        at = self.devices.everyones(np.asarray(clock, np.int32))
        state, loss, metrics = self._compiled[shapes](state, batch, at, self._named.at(draw))
        return state, StepMeasures(loss, metrics=metrics)


def _stepped(
    spec: OptimizerSpec,
    transformation: optax.GradientTransformationExtraArgs,
    gradients: ScaledGradients,
    state: InnerState,
    batch: Batch,
    clock: jax.Array,
    named: dict[str, Any],
) -> tuple[InnerState, jax.Array, Metrics]:
    """Return the state after one step, and the loss before it with its metrics."""
    scale = spec.constant_scale if state.scale is None else state.scale.scale
    loss, grads, task_state, metrics = gradients(state.params, batch, with_key(named), scale)
    before = state.params, state.opt_state
    params, moments = updated(spec, transformation, grads, before, clock)
    after = with_state(params, task_state), moments
    kept, now = unless_overflow(state.scale, grads, after, before, spec.loss_scale_steps)
    return InnerState(*kept, now), loss, metrics


def _shapes(batch: Batch) -> Shapes:
    return tuple((tuple(leaf.shape), str(leaf.dtype)) for leaf in jax.tree.leaves(batch))
