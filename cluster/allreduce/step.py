"""The step of a ring: gradients of this process's batch, their mean over all members, one update.

The collectives are those of JAX (`shard_map` with `psum`, `all_to_all`, `all_gather`): gloo between
CPUs, NCCL or ICI between accelerators. Parameters are replicated on every device of every member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from cluster.allreduce.wire import buckets_of, padded
from coordinator.codec import Wire
from islands.gradients import gradients_of, with_state
from islands.inner import NO_DRAW, InnerState
from islands.losses import frozen_of
from islands.named_arguments import with_key
from islands.optimizer import OptimizerSpec, direction, updated
from islands.state_tree import FROZEN, KEY, STATE, named_arguments
from islands.task import Batch, Params, Task

AXIS = "all"
TOKEN_UNIT = 4096
"""Tokens are sent as two float32 numbers, in this unit and the rest, so that sums are exact."""
Tree: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class StepTotals:
    """The totals of a step over all members."""

    loss: float
    """The mean loss before the step, in nats per token."""
    tokens: int
    """The tokens of all members."""
    leaving: int
    """The number of members that leave the ring after the step."""


class RingStep:
    """The compiled step of one ring; all members call theirs at the same time.

    If a member dies, `mean` raises at the others. Their state before the step is then intact: only
    `update` donates parameters and moments, and each member calls it alone.
    """

    def __init__(
        self, task: Task, spec: OptimizerSpec, wire: Wire, members: int, accumulate: int = 1
    ) -> None:
        """Prepare the step. `members`: number; their devices come last in `jax.devices()`.

        `accumulate`: as in `islands.gradients`.
        """
        self._task, self._spec, self._wire, self._members = task, spec, wire, members
        local_devices = jax.local_devices()
        self.platform = local_devices[0].platform
        ring = [d for d in jax.devices() if members == 1 or d.process_index > 0]
        self._here = NamedSharding(Mesh(np.array(local_devices), (AXIS,)), PartitionSpec())
        self._split = NamedSharding(Mesh(np.array(local_devices), (AXIS,)), PartitionSpec(AXIS))
        self._mesh = Mesh(np.array(ring), (AXIS,))
        self._direction = direction(spec, task)
        self._loss = gradients_of(task, accumulate, spec.constant_scale)
        self._names = named_arguments(task.loss)
        self._has_state = task.init_state is not None
        leaves, self._structure = jax.tree.flatten(task.shapes)
        self._shapes = [leaf.shape for leaf in leaves]
        self.sizes = [leaf.size for leaf in leaves]
        self._buckets = buckets_of(self.sizes)
        self._grads = jax.jit(self._gradients, out_shardings=self._here)
        self._update: Any = jax.jit(self._updated, donate_argnums=0, out_shardings=self._here)
        self._sound: Any = jax.jit(_all_finite)
        self._fresh = jax.jit(self._direction.init, out_shardings=self._here)
        self._sum = jax.jit(
            jax.shard_map(
                self._summed,
                mesh=self._mesh,
                in_specs=PartitionSpec(),
                out_specs=PartitionSpec(),
                check_vma=False,
            )
        )

    # --- state ------------------------------------------------------------------------------------

    def start(self, params: Params, moments: Sequence[Any] | None) -> InnerState:
        """Return a state on this member's devices. `moments`: leaves on the host; None for zero."""
        placed = self._place(params)
        if moments is None:
            return InnerState(placed, self._fresh(placed))
        template = jax.eval_shape(self._direction.init, placed)
        tree = jax.tree.unflatten(jax.tree.structure(template), moments)
        return InnerState(placed, self._place(tree))

    @cached_property
    def _frozen(self) -> Any:
        return self._place(frozen_of(self._task))

    def _place(self, tree: Tree) -> Tree:
        return jax.tree.map(lambda x: jax.device_put(np.array(x), self._here), tree)

    def compile(self, state: InnerState, batch: Batch) -> None:
        """Compile the local functions; the sums over all members compile at the first `mean`."""
        loss, buckets = self.gradients(state, batch)
        self._sound = self._sound.lower(loss, buckets).compile()
        self._update = self._update.lower(state, buckets, np.int32(0)).compile()
        jax.block_until_ready(buckets)

    # --- a step -----------------------------------------------------------------------------------

    def gradients(
        self, state: InnerState, batch: Batch, draw: NDArray[np.uint32] = NO_DRAW
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Return the mean loss of this member's batch, and its gradient in buckets.

        `draw`: the words of the step's key, uint32 [4], for a loss that draws.
        """
        named: dict[str, Any] = {KEY: draw} if KEY in self._names else {}
        if FROZEN in self._names:
            named[FROZEN] = self._frozen
        return self._grads(state.params, jax.device_put(batch, self._split), named)

    def sound(self, loss: jax.Array, buckets: list[jax.Array]) -> bool:
        """Return whether loss and gradients are all finite; wait for them."""
        return bool(self._sound(loss, buckets))

    def mean(
        self,
        loss: jax.Array,
        buckets: list[jax.Array],
        tokens: int,
        leaving: bool,
        counted: int | None = None,
    ) -> tuple[list[jax.Array], StepTotals]:
        """Return the mean of the buckets over all members, equal bit for bit; wait for it.

        `counted`: the number of tokens that the loss counts in a batch with a mask. Gradients and
        losses are then weighted by it, so they are those of the summed batch. None: no mask.

        Errors: `jax.errors.JaxRuntimeError` if a member is gone.
        """
        units, rest = divmod(tokens, TOKEN_UNIT)
        words = jnp.stack([loss, *map(jnp.float32, (leaving, rest, units))])
        if self._members > 1:
            replicated = NamedSharding(self._mesh, PartitionSpec())
            own_arrays = buckets, words, None if counted is None else jnp.float32(counted)
            shared_arrays = jax.tree.map(lambda x: _shared(x, replicated), own_arrays)
            sums = jax.tree.map(lambda x: _own(x, self._here), self._sum(*shared_arrays))
            buckets, words = sums
        jax.block_until_ready(buckets)
        total_loss, *counts = np.asarray(words).tolist()
        leaving_members, rest, units = map(round, counts)
        all_tokens = units * TOKEN_UNIT + rest
        totals = StepTotals(total_loss / self._members, all_tokens, leaving_members)
        return buckets, totals

    def update(self, state: InnerState, buckets: list[jax.Array], clock: int) -> InnerState:
        """Take a step of the optimizer at the learning rate of `clock`; it donates `state`."""
        return self._update(state, buckets, np.int32(clock))

    def _gradients(
        self, params: Params, batch: Batch, named: dict[str, Any]
    ) -> tuple[jax.Array, list[jax.Array]]:
        loss, grads, state, _ = self._loss(params, batch, with_key(named))
        if state is not None:  # its members' mean is that of its changes
            grads = with_state(grads, jax.tree.map(jnp.subtract, state, params[STATE]))
        leaves = jax.tree.leaves(grads)
        return loss, [
            jnp.concatenate([jnp.ravel(leaves[i]) for i in bucket]) for bucket in self._buckets
        ]

    def _summed(
        self, buckets: list[jax.Array], words: jax.Array, counted: jax.Array | None = None
    ) -> tuple[list[jax.Array], jax.Array]:
        """Return the means of the buckets and the sums of the words; runs inside `shard_map`.

        The members have weights with a mean of 1; all are 1 without a mask or counted tokens.
        """
        weights = None
        if counted is not None:
            counts = lax.all_gather(counted, AXIS)
            total = jnp.sum(counts)
            weights = jnp.where(total > 0, counts * counts.size / jnp.maximum(total, 1), 1.0)
            words = words.at[0].multiply(weights[lax.axis_index(AXIS)])
        return [self._bucket_mean(each, weights) for each in buckets], lax.psum(words, AXIS)

    def _bucket_mean(self, bucket: jax.Array, weights: jax.Array | None) -> jax.Array:
        members = self._mesh.size
        if self._wire is Wire.F32:
            own = bucket if weights is None else bucket * weights[lax.axis_index(AXIS)]
            return lax.psum(own, AXIS) / members
        # XLA turns a bf16 psum between CPUs into an f32 one before it sends it. So the sum consists
        # of two collectives that only move bits: each member gets one part from all (all-to-all),
        # sums it in f32, and sends the mean to all (all-gather).
        padded_bucket = jnp.pad(bucket, (0, padded(bucket.size, members) - bucket.size))
        parts = lax.all_to_all(_bits(padded_bucket).reshape(members, -1), AXIS, 0, 0)
        floats = _floats(parts)
        own_mean = (floats if weights is None else floats * weights[:, None]).sum(0) / members
        return _floats(lax.all_gather(_bits(own_mean), AXIS)).reshape(-1)[: bucket.size]

    def _updated(self, state: InnerState, buckets: list[jax.Array], clock: jax.Array) -> InnerState:
        leaves: list[jax.Array] = [jnp.zeros(0)] * len(self.sizes)
        for bucket, flat in zip(self._buckets, buckets, strict=True):
            cuts = np.cumsum([self.sizes[i] for i in bucket])[:-1]
            for i, piece in zip(bucket, jnp.split(flat, cuts), strict=True):
                leaves[i] = piece.reshape(self._shapes[i])
        grads, task_state = jax.tree.unflatten(self._structure, leaves), None
        if self._has_state:
            task_state = jax.tree.map(jnp.add, state.params[STATE], grads[STATE])
            grads = with_state(grads, jax.tree.map(jnp.zeros_like, task_state))
        before = state.params, state.opt_state
        params, moments = updated(self._spec, self._direction, grads, before, clock)
        return InnerState(with_state(params, task_state), moments)


def _all_finite(loss: jax.Array, buckets: list[jax.Array]) -> jax.Array:
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(each)) for each in (loss, *buckets)]))


def _bits(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16)


def _floats(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, jnp.bfloat16).astype(jnp.float32)


def _shared(x: jax.Array, everywhere: NamedSharding) -> jax.Array:
    """Return this member's array as its shard of the replicated global array, without a copy."""
    shards = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, everywhere, shards)


def _own(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    shards = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, shards)
