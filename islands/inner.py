"""The inner step: one update of one learner, compiled; `(state, batch) -> (state, measures)`.

The learning rate follows the learner's *clock*, an argument, and not the optimizer's own count: a
learner that comes back with fresh moments goes on at the rate of the others, and an adopted
fragment never starts the schedule again. Where clock and count agree an update of AdamW is, bit for
bit, `optax.adamw(schedule)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.optimizer import OptimizerSpec, direction
from islands.task import Batch, Params, Task

Device: TypeAlias = Any
"""A `jax.Device`, a type that lives in jaxlib, out of the type checker's sight."""
Shapes: TypeAlias = tuple[tuple[tuple[int, ...], str], ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class InnerState:
    """What a step changes: parameters (float32) and moments, both pytrees on the devices.

    Donated to each step: whoever reads it between two steps copies what he keeps.
    """

    params: Params
    opt_state: optax.OptState


@dataclass(frozen=True, slots=True)
class Measures:
    """What a step tells: the loss before it, in nats per token, a scalar still being computed."""

    loss: jax.Array


class Inner:
    """Compiles and runs a task's inner step on this process's devices.

    On several devices the batch is split along its first axis and the parameters are held by each
    (data-parallel; the compiler inserts the sums). Nothing here waits for the devices.
    """

    def __init__(
        self, task: Task, spec: OptimizerSpec, devices: Sequence[Device] | None = None
    ) -> None:
        self._task, self._spec = task, spec
        mesh = Mesh(np.asarray(devices or jax.local_devices()), ("batch",))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._split = NamedSharding(mesh, PartitionSpec("batch"))
        self._compiled: dict[Shapes, Any] = {}
        self._direction = direction(spec, task)
        self._moments = jax.jit(self._direction.init, out_shardings=self._everywhere)

    def start(self, params: Params, moments: optax.OptState | None = None) -> InnerState:
        """A state on the devices, with a copy of the parameters; moments are zero unless given.

        Moments that are on the devices already are taken over: the first step uses them up.
        """
        params = self.place(params)
        if moments is None:
            return InnerState(params, self._moments(params))
        return InnerState(params, jax.tree.map(self._put, moments))

    def moments(self, state: InnerState, after: int = 0) -> Iterator[NDArray[Any]]:
        """Copies of the optimizer's moments on the host, leaf by leaf: for a learner that has none.

        `after`: the first ones are left out. A copy on the devices would cost as much as two thirds
        of what a learner needs to train.
        """
        for leaf in jax.tree.leaves(state.opt_state)[after:]:
            yield np.array(leaf)

    def accept(self, leaves: Sequence[NDArray[Any]]) -> optax.OptState:
        """Moments that another learner gave, on the host still, for `start`.

        Errors: `ValueError` if they are of another shape or type, or not finite.
        """
        mine, structure = jax.tree.flatten(self._like.opt_state)
        if [(x.shape, x.dtype) for x in leaves] != [(x.shape, x.dtype) for x in mine]:
            raise ValueError("moments of another model or optimizer")
        if not all(np.isfinite(leaf).all() for leaf in leaves):
            raise ValueError("moments that are not finite")
        return jax.tree.unflatten(structure, leaves)

    @cached_property
    def _like(self) -> InnerState:
        """Shapes and types of a state."""
        shapes = self._task.shapes
        return InnerState(shapes, jax.eval_shape(self._direction.init, shapes))

    def place(self, tree: Params) -> Params:
        """Copy a pytree of arrays to where the step wants parameters and moments."""
        return jax.tree.map(lambda x: jax.device_put(jnp.array(x), self._everywhere), tree)

    def _put(self, leaf: NDArray[Any] | jax.Array) -> jax.Array:
        """What is on the devices as it is, anything else as a copy."""
        mine = leaf if isinstance(leaf, jax.Array) else jnp.array(leaf)
        return jax.device_put(mine, self._everywhere)

    def compile(self, batch: Batch) -> None:
        """Compile the step for batches shaped like this one, ahead of time; its values are unread.

        Errors: `UserMistake` if the batch cannot be split evenly over the devices.
        """
        ways = len(self._split.device_set)
        for leaf in jax.tree.leaves(batch):
            if leaf.shape[0] % ways:
                raise UserMistake(
                    f"a batch of {leaf.shape[0]} cannot be split over {ways} devices: "
                    f"make the island's batch_size a multiple of {ways}"
                )
        here, split = self._everywhere, self._split
        step = jax.jit(
            self._step,
            in_shardings=(here, split, here),
            out_shardings=(here, here),
            donate_argnums=0,
        )
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
        clock = jax.ShapeDtypeStruct((), jnp.int32)
        self._compiled[_shapes(batch)] = step.lower(self._like, like, clock).compile()

    def step(self, state: InnerState, batch: Batch, clock: int) -> tuple[InnerState, Measures]:
        """One inner step at the learning rate of `clock`; `state` is used up.

        Batches of a new shape are compiled on the way.
        """
        if (shapes := _shapes(batch)) not in self._compiled:
            self.compile(batch)
        batch = jax.device_put(batch, self._split)
        state, loss = self._compiled[shapes](state, batch, np.int32(clock))
        return state, Measures(loss)

    def _step(
        self, state: InnerState, batch: Batch, clock: jax.Array
    ) -> tuple[InnerState, jax.Array]:
        loss, grads = jax.value_and_grad(self._task.loss)(state.params, batch)
        updates, moments = self._direction.update(grads, state.opt_state, state.params)
        rate = self._spec.rate(clock)
        updates = jax.tree.map(lambda u: -rate * u, updates)
        return InnerState(optax.apply_updates(state.params, updates), moments), loss


def _shapes(batch: Batch) -> Shapes:
    return tuple((tuple(leaf.shape), str(leaf.dtype)) for leaf in jax.tree.leaves(batch))
