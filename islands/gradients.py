"""The gradient of a step's loss, in one piece or summed over parts of the batch.

The state of a task (`Task.init_state`) takes no gradient: the loss returns its next value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from islands.losses import LossResult, Named, training_loss
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


Gradients: TypeAlias = Callable[[Params, Batch, Named], Gradient]
"""(parameters, batch, named arguments) -> gradient; parameters and state in one tree."""


def gradients_of(task: Task, accumulate: int = 1, loss_scale: float = 1.0) -> Gradients:
    """Return the gradient of the task's loss.

    `accumulate`: the number of equal parts of a batch that are computed one after another, so that
    only one part's activations take memory. Loss and gradient are then the means over the parts.
    `loss_scale`: a factor of all gradients within the backward pass, so that those of float16 do
    not become zero; the gradient that is returned is divided by it (arXiv:1710.03740).
    """
    has_state = task.init_state is not None
    whole = _stateful(task, loss_scale) if has_state else _stateless(task, loss_scale)
    return whole if accumulate == 1 else _accumulated(whole, accumulate, has_state=has_state)


def _stateless(task: Task, loss_scale: float) -> Gradients:
    loss = training_loss(task)

    def scaled(params: Params, batch: Batch, named: Named) -> tuple[jax.Array, jax.Array]:
        number = loss(params, batch, named).loss
        return _scaled(number, loss_scale), number

    graded = jax.value_and_grad(scaled, has_aux=True)

    def call(params: Params, batch: Batch, named: Named) -> Gradient:
        (_, number), grads = graded(params, batch, named)
        return Gradient(number, _unscaled(grads, loss_scale), None)

    return call


def _stateful(task: Task, loss_scale: float) -> Gradients:
    loss = training_loss(task)

    def of_params(
        params: Params, state: Any, batch: Batch, named: Named
    ) -> tuple[jax.Array, LossResult]:
        result = loss({PARAMS: params, STATE: state}, batch, named)
        return _scaled(result.loss, loss_scale), result

    graded = jax.value_and_grad(of_params, has_aux=True)

    def call(tree: Params, batch: Batch, named: Named) -> Gradient:
        (_, result), grads = graded(tree[PARAMS], tree[STATE], batch, named)
        zeros = jax.tree.map(jnp.zeros_like, tree[STATE])
        grads = {PARAMS: _unscaled(grads, loss_scale), STATE: zeros}
        return Gradient(result.loss, grads, result.state)

    return call


def _scaled(loss: jax.Array, scale: float) -> jax.Array:
    return loss if scale == 1 else loss * scale


def _unscaled(grads: Params, scale: float) -> Params:
    return grads if scale == 1 else jax.tree.map(lambda x: x / scale, grads)


def _accumulated(gradients: Gradients, parts: int, *, has_state: bool) -> Gradients:
    """Return the mean over parts of the batch; the state goes from each part to the next.

    Part j has the rows j, j + parts, j + 2 parts and so on: the rows of a device stay on it.
    """

    def call(tree: Params, batch: Batch, named: Named) -> Gradient:
        rows = jax.tree.map(lambda x: x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), batch)

        def one(total: Gradient, j: jax.Array) -> tuple[Gradient, None]:
            part = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, j, 1, False), rows)
            own = {**named, KEY: jax.random.fold_in(named[KEY], j)} if KEY in named else named
            found = gradients(with_state(tree, total.state), part, own)
            grads = jax.tree.map(jnp.add, total.grads, found.grads)
            return Gradient(total.loss + found.loss, grads, found.state), None

        zeros = jax.tree.map(jnp.zeros_like, tree)
        start = Gradient(jnp.float32(0), zeros, tree[STATE] if has_state else None)
        total, _ = jax.lax.scan(one, start, jnp.arange(parts))
        grads = jax.tree.map(lambda x: x / parts, total.grads)
        return Gradient(total.loss / parts, grads, total.state)

    return call


def with_state(tree: Params, state: Any) -> Params:
    """Return the tree with this state in it; None: the tree as it is."""
    return tree if state is None else {PARAMS: tree[PARAMS], STATE: state}
