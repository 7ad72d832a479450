"""The gradient of a step's loss, in one piece or summed over parts of the batch.

The state of a task (`Task.init_state`) takes no gradient: the loss returns its next value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from islands.data.segments import counted_in
from islands.losses import LossResult, Metrics, Named, training_loss
from islands.state_tree import KEY, PARAMS, STATE
from islands.task import Batch, Params, Task


class Gradient(NamedTuple):
    """The loss of a batch and its gradient."""

    loss: jax.Array
    """Mean nats per token, a float32 scalar."""
    grads: Params
    """A tree like the parameters; zeros for the state."""
    state: Any
    """The new state; None if the task has none."""
    metrics: Metrics
    """The metrics of the loss; means over the parts of the batch, weighted as the loss."""


Scale: TypeAlias = float | jax.Array
"""A factor of all gradients within the backward pass; the number 1 changes no bit."""
Gradients: TypeAlias = Callable[[Params, Batch, Named], Gradient]
"""(parameters, batch, named arguments) -> gradient; parameters and state in one tree."""
ScaledGradients: TypeAlias = Callable[[Params, Batch, Named, Scale], Gradient]
"""A gradient function that also takes a loss scale, by which the gradient is divided again."""


def gradients_of(task: Task, accumulate: int = 1, loss_scale: float = 1.0) -> Gradients:
    """Return the gradient of the task's loss.

    `loss_scale`: a factor of all gradients within the backward pass, so that those of float16 do
    not become zero; the gradient that is returned is divided by it (arXiv:1710.03740).
    """
    scaled = scaled_gradients_of(task, accumulate)
    return lambda tree, batch, named: scaled(tree, batch, named, loss_scale)


def scaled_gradients_of(task: Task, accumulate: int = 1) -> ScaledGradients:
    """Return the gradient of the task's loss, as a function that takes the loss scale, too.

    `accumulate`: the number of equal parts of a batch that are computed one after another, so that
    only one part's activations take memory. Loss and gradient are then the means over the parts.
    The parts of a batch with a mask are weighted by the tokens that the loss counts in them.
    """
    has_state = task.init_state is not None
    whole = _stateful(task) if has_state else _stateless(task)
    return whole if accumulate == 1 else _accumulated(whole, accumulate, has_state=has_state)


def _stateless(task: Task) -> ScaledGradients:
    loss = training_loss(task)

    def scaled(
        params: Params, batch: Batch, named: Named, scale: Scale
    ) -> tuple[jax.Array, LossResult]:
        result = loss(params, batch, named)
        return _scaled(result.loss, scale), result

    graded = jax.value_and_grad(scaled, has_aux=True)

    def call(params: Params, batch: Batch, named: Named, scale: Scale) -> Gradient:
        (_, result), grads = graded(params, batch, named, scale)
        return Gradient(result.loss, _unscaled(grads, scale), None, result.metrics)

    return call


def _stateful(task: Task) -> ScaledGradients:
    loss = training_loss(task)

    def of_params(
        params: Params, state: Any, batch: Batch, named: Named, scale: Scale
    ) -> tuple[jax.Array, LossResult]:
        result = loss({PARAMS: params, STATE: state}, batch, named)
        return _scaled(result.loss, scale), result

    graded = jax.value_and_grad(of_params, has_aux=True)

    def call(tree: Params, batch: Batch, named: Named, scale: Scale) -> Gradient:
        (_, result), grads = graded(tree[PARAMS], tree[STATE], batch, named, scale)
        zeros = jax.tree.map(jnp.zeros_like, tree[STATE])
        grads = {PARAMS: _unscaled(grads, scale), STATE: zeros}
        return Gradient(result.loss, grads, result.state, result.metrics)

    return call


def _scaled(loss: jax.Array, scale: Scale) -> jax.Array:
    return loss if _is_one(scale) else loss * scale


def _unscaled(grads: Params, scale: Scale) -> Params:
    return grads if _is_one(scale) else jax.tree.map(lambda x: x / scale, grads)


def _is_one(scale: Scale) -> bool:
    return isinstance(scale, float | int) and scale == 1


def _accumulated(gradients: ScaledGradients, parts: int, *, has_state: bool) -> ScaledGradients:
    """Return the mean over parts of the batch; the state goes from each part to the next.

    Part j has the rows j, j + parts, j + 2 parts and so on: the rows of a device stay on it.
    Without a mask all parts weigh equally.
    """

    def call(tree: Params, batch: Batch, named: Named, scale: Scale) -> Gradient:
        rows = jax.tree.map(lambda x: x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), batch)
        weights = None if counted_in(batch) is None else _weights_of_parts(rows, parts)

        def one(total: Gradient, j: jax.Array) -> tuple[Gradient, Metrics]:
            part = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, j, 1, False), rows)
            own = {**named, KEY: jax.random.fold_in(named[KEY], j)} if KEY in named else named
            found = gradients(with_state(tree, total.state), part, own, scale)
            found = found if weights is None else _weighted(found, weights[j])
            grads = jax.tree.map(jnp.add, total.grads, found.grads)
            return Gradient(total.loss + found.loss, grads, found.state, {}), found.metrics

        zeros = jax.tree.map(jnp.zeros_like, tree)
        start = Gradient(jnp.float32(0), zeros, tree[STATE] if has_state else None, {})
        total, each = jax.lax.scan(one, start, jnp.arange(parts))
        grads = jax.tree.map(lambda x: x / parts, total.grads)
        metrics = jax.tree.map(lambda x: jnp.mean(x, 0), each)
        return Gradient(total.loss / parts, grads, total.state, metrics)

    return call


def _weights_of_parts(rows: Batch, parts: int) -> jax.Array:
    """Return the weights of the parts, float32 [parts], with a mean of 1.

    `rows`: a batch with a mask, [rows of a part, parts, ...]. All weights are 1 if no token counts.
    """
    counts = jax.vmap(counted_in, in_axes=1)(rows).astype(jnp.float32)
    total = jnp.sum(counts)
    return jnp.where(total > 0, counts * parts / jnp.maximum(total, 1), 1.0)


def _weighted(found: Gradient, weight: jax.Array) -> Gradient:
    """Return loss, gradient and metrics times a weight; zeros for the weight 0."""

    def times(leaf: jax.Array) -> jax.Array:
        kind = leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.float32
        return jnp.where(weight > 0, leaf * weight.astype(kind), 0)

    grads, metrics = jax.tree.map(times, (found.grads, found.metrics))
    return Gradient(times(found.loss), grads, found.state, metrics)


def with_state(tree: Params, state: Any) -> Params:
    """Return the tree with this state in it; None: the tree as it is."""
    return tree if state is None else {PARAMS: tree[PARAMS], STATE: state}
