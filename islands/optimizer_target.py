"""An optimizer of the user's own as the inner one: `optimizer.target`, an optax transformation.

Its updates are those of optax: they are added to the parameters, so that they go down the loss. We
multiply them by the rate of the learner's clock; with `schedule = "target"` that factor is 1.

A schedule within a target follows a `count` in its state. The learner's clock takes the place of
that count before each update, so that a learner that rejoins with fresh moments has the rate of the
others. A `count` that stands beside moments is left as it is: it is the number of steps in
these moments (Adam corrects their bias by it), and fresh moments have seen none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from coordinator.errors import UserMistake
from islands.pickled_task import load_pickled
from islands.task import Option, Params
from islands.user_code import attribute_of, result_of
from islands.user_lines import place_of, place_of_name

KEY = "optimizer.target"
Path: TypeAlias = tuple[Any, ...]
"""The keys of a leaf, as `jax.tree_util` returns them."""


class TargetState(NamedTuple):
    """The state of a target, with the steps in its moments, which optax does not always count."""

    steps: jax.Array
    """Steps in the first moments that no second moment divides, int32."""
    divided_steps: jax.Array
    """Steps in all other moments, int32."""
    inner: optax.OptState
    """The state of the user's transformation."""


class Beside(NamedTuple):
    """A leaf of an optimizer's state that belongs to one parameter."""

    node: Path
    """The keys of the node that holds trees like the parameters, such as `ScaleByAdamState`."""
    parameter: Path
    """The keys of the parameter."""


def load_target(
    target: str, options: Mapping[str, Option], pickled: str | None = None
) -> optax.GradientTransformation:
    """Return the transformation that `target` names, or that its function returns.

    `pickled`: the function itself (`islands.pickled_task`); `target` is then only its name.

    Errors: `UserMistake` if there is none, or the options are not those of the function.
    """
    found = _found(target, pickled)
    if isinstance(found, optax.GradientTransformation):
        if options:
            raise UserMistake(
                f'{place_of_target(target)}{KEY} = "{target}" is a transformation itself and takes '
                "no options: leave optimizer.options out, or name a function that returns it"
            )
        return found
    if not callable(found):
        raise UserMistake(f'{KEY} = "{target}" is {type(found).__name__}, {WANTED}')
    made = result_of(KEY, target, found, options)
    if not isinstance(made, optax.GradientTransformation):
        returned = f'{KEY} = "{target}" returned {type(made).__name__}, {WANTED}'
        raise UserMistake(f"{place_of(found)}{returned}")
    return made


def place_of_target(target: str, pickled: str | None = None) -> str:
    """Return "FILE:LINE: " of a target that `load_target` loads; empty if it is not the user's.

    A transformation that optax has made has the line of the variable that holds it.
    """
    found: Any = _found(target, pickled)
    if not isinstance(found, optax.GradientTransformation):
        return place_of(found)
    module, _, name = target.partition(":")
    return place_of(found.update) or place_of_name(import_module(module), name)


def _found(target: str, pickled: str | None) -> Any:
    if pickled is None:
        return attribute_of(KEY, target)
    return load_pickled(pickled, target, "optimizer")


WANTED = "not an optax.GradientTransformation or a function that returns one"


def descent(
    transformation: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Return the transformation as one of directions, which a step goes against.

    Updates take the learner's `clock` as a keyword argument.
    """

    def init(params: Params) -> TargetState:
        return TargetState(
            jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), transformation.init(params)
        )

    def update(
        updates: Params, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Params, Any]:
        inner = on_clock(state.inner, params, extra["clock"])
        updates, inner = transformation.update(updates, inner, params)
        steps, divided_steps = state.steps + 1, state.divided_steps + 1
        return jax.tree.map(jnp.negative, updates), TargetState(steps, divided_steps, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def on_clock(state: optax.OptState, params: Params, clock: jax.typing.ArrayLike) -> optax.OptState:
    """Return the state with the clock in place of each count that a schedule follows."""
    leaves, structure = jax.tree.flatten(state)
    for number in clocked(state, params):
        leaves[number] = jnp.asarray(clock, leaves[number].dtype)
    return jax.tree.unflatten(structure, leaves)


def clocked(state: optax.OptState, params: Params) -> list[int]:
    """Return the numbers of the leaves that count steps and stand beside no moments."""
    named = jax.tree_util.tree_flatten_with_path(state)[0]
    nodes = {each.node for each in besides(named, params) if each is not None}
    return [
        number
        for number, (keys, leaf) in enumerate(named)
        if is_count(keys, leaf) and tuple(keys)[:-1] not in nodes
    ]


def is_count(keys: Sequence[Any], leaf: Any) -> bool:
    """Return whether a leaf of an optimizer's state is a whole number called `count`."""
    if not keys or leaf.shape or not jnp.issubdtype(leaf.dtype, jnp.integer):
        return False
    return getattr(keys[-1], "name", getattr(keys[-1], "key", None)) == "count"


def besides(named: Sequence[tuple[Any, Any]], params: Params) -> Iterator[Beside | None]:
    """Yield for each leaf of a state the parameter whose keys its own end in; None without one.

    Before these keys come those of the tree that is like the parameters, such as `mu`, and before
    these the keys of the node that holds the tree. `named`: leaves with their keys.
    """
    own = {tuple(keys) for keys, _ in jax.tree_util.tree_flatten_with_path(params)[0]}
    lengths = sorted({len(keys) for keys in own}, reverse=True)
    for keys, leaf in named:
        yield next(
            (
                Beside(tuple(keys)[: len(keys) - n - 1], tuple(keys)[len(keys) - n :])
                for n in lengths
                if n < len(keys) and tuple(keys)[len(keys) - n :] in own and (n or leaf.ndim)
            ),
            None,
        )
