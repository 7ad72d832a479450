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


def gradients_of(task: Task, accumulate: int = 1) -> Gradients:
    """Return the gradient of the task's loss.

    `accumulate`: the number of equal parts of a batch that are computed one after another, so that
    only one part's activations take memory. Loss and gradient are then the means over the parts.
    """
    has_state = task.init_state is not None
    whole = _stateful(task) if has_state else _stateless(task)
    return whole if accumulate == 1 else _accumulated(whole, accumulate, has_state=has_state)


def _stateless(task: Task) -> Gradients:
    graded = jax.value_and_grad(_with_aux(training_loss(task)), has_aux=True)

    def call(params: Params, batch: Batch, named: Named) -> Gradient:
        (loss, _), grads = graded(params, batch, named)
        return Gradient(loss, grads, None)

    return call


def _stateful(task: Task) -> Gradients:
    loss = training_loss(task)

    def of_params(params: Params, state: Any, batch: Batch, named: Named) -> tuple[jax.Array, Any]:
        result = loss({PARAMS: params, STATE: state}, batch, named)
        return result.loss, result.state

    graded = jax.value_and_grad(of_params, has_aux=True)

    def call(tree: Params, batch: Batch, named: Named) -> Gradient:
        (number, state), grads = graded(tree[PARAMS], tree[STATE], batch, named)
        zeros = jax.tree.map(jnp.zeros_like, tree[STATE])
        return Gradient(number, {PARAMS: grads, STATE: zeros}, state)

    return call


def _with_aux(
    loss: Callable[[Params, Batch, Named], LossResult],
) -> Callable[[Params, Batch, Named], tuple[jax.Array, None]]:
    """Drop the metrics, which only evaluations use."""

    def call(params: Params, batch: Batch, named: Named) -> tuple[jax.Array, None]:
        return loss(params, batch, named).loss, None

    return call


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
