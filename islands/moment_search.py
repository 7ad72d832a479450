"""The search for first moments in the state of an optimizer.

A first moment is a moving average of gradients. The state of AdamW and Muon names theirs. In the
state of a target they are found by what they do in three steps on zero parameters with one gradient
g. A leaf of the form of a parameter is a first moment with decay beta if it starts from zero, turns
its sign with that of g, and is (1 + beta) times as large after the second step and
(1 + beta + beta^2) times after the third, in every element. Second moments do not turn their sign;
sums of gradients have beta = 1; copies have beta = 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from islands.optimizer import OptimizerSpec, direction
from islands.optimizer_target import Path, TargetState, besides, is_count
from islands.task import Params, Task, leaf_path

LARGEST_TRIED = 1 << 22
"""Elements of the largest parameters on which a target is tried as they are."""
SIDE = 8
"""The longest axis of the parameters on which a target of a larger model is tried."""
DIGITS = 5
"""The digits to which a decay is measured, so that every host finds the same number."""
STEPS = ((1, 1), (-1, 1), (1, 2), (1, 3))
"""The sign of the gradient, and the number of steps, of each try."""
ROUNDING = 1e-4
"""The largest relative difference between two numbers that count as equal."""


@dataclass(frozen=True, slots=True)
class MomentPart:
    """The first moments of one decay and one age in the state of an optimizer."""

    decay: float
    """The decay beta of the moving average."""
    alone: bool
    """Whether no second moment of the same age divides them."""
    age: int
    """The number of the leaf that counts the steps in them."""
    counts: tuple[int, ...]
    """The numbers of all leaves that count these steps, `age` included."""
    leaves: Mapping[str, int]
    """Path of a parameter -> number of the leaf that is its first moment."""


def moment_parts(spec: OptimizerSpec, task: Task) -> list[MomentPart]:
    """Return all first moments in the optimizer's state for this task.

    Errors: `UserMistake` if there is no such target; whatever a target raises that is tried.
    """
    if spec.target is not None:
        return Trial(spec, task, tried(task.shapes)).first_moments()
    like = jax.eval_shape(direction(spec, task).init, task.shapes)
    numbers = jax.tree.unflatten(jax.tree.structure(like), range(len(jax.tree.leaves(like))))
    parts = [each for each in jax.tree.leaves(numbers, is_leaf=_is_part) if _is_part(each)]
    return [_built_in(spec, part) for part in parts]


def _is_part(node: object) -> bool:
    return hasattr(node, "mu") and hasattr(node, "count")


def _built_in(spec: OptimizerSpec, part: Any) -> MomentPart:
    is_adam = isinstance(part, optax.ScaleByAdamState)
    named = jax.tree_util.tree_flatten_with_path(part.mu)[0]
    leaves = {leaf_path(keys): number for keys, number in named}
    decay = spec.b1 if is_adam else spec.momentum
    return MomentPart(decay, not is_adam, part.count, (part.count,), leaves)


# --- the state of a target ------------------------------------------------------------------------


def tried(shapes: Params) -> Params:
    """Return the shapes of parameters on which a target is tried: shorter axes if there are many.

    A state has the same leaves for both.
    """
    if sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) <= LARGEST_TRIED:
        return shapes
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(tuple(min(SIDE, n) for n in leaf.shape), leaf.dtype),
        shapes,
    )


class Trial:
    """A target that is tried on parameters of these shapes, with one gradient and its opposite."""

    def __init__(self, spec: OptimizerSpec, task: Task, shapes: Params) -> None:
        transformation = direction(spec, task)
        self._init, self._update = jax.jit(transformation.init), jax.jit(transformation.update)
        self._clock = np.int32(max(1, spec.horizon_steps // 2))  # in no warm-up, before the end
        self.params = self.drawn(shapes, 0)
        self.gradient = self.drawn(shapes, 1)
        self._zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)

    @staticmethod
    def drawn(shapes: Params, seed: int) -> Params:
        """Return normal numbers of these shapes."""
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype(np.float32), shapes)

    def init(self) -> optax.OptState:
        """Return the state before the first step, for parameters that are not zero."""
        return self._init(self.params)

    def steps(self, sign: float, number: int) -> tuple[Params, TargetState]:
        """Return update and state after steps from zero parameters, which stay where they are."""
        state: Any = self._init(self._zeros)
        gradient, updates = (
            jax.tree.map(partial(np.multiply, np.float32(sign)), self.gradient),
            None,
        )
        for _ in range(number):
            directions, state = self._update(gradient, state, self._zeros, clock=self._clock)
            updates = jax.tree.map(jnp.negative, directions)
        return updates, state

    def first_moments(self) -> list[MomentPart]:
        """Return the first moments in the state; the first one of a parameter that has several."""
        named = jax.tree_util.tree_flatten_with_path(self._init(self._zeros))[0]
        states = [self.steps(sign, number)[1] for sign, number in STEPS]
        values = [[np.asarray(x, np.float64) for x in jax.tree.leaves(each)] for each in states]
        once, opposite, *_ = values
        beside = [*besides(named, self._zeros)]
        even = {
            each
            for each, a, b in zip(beside, once, opposite, strict=True)
            if each is not None and a.any() and np.allclose(a, b, rtol=ROUNDING)
        }
        shapes = {
            tuple(keys): leaf.shape
            for keys, leaf in jax.tree_util.tree_flatten_with_path(self._zeros)[0]
        }
        groups, taken = dict[tuple[float, bool, Path], dict[str, int]](), set[Path]()
        for number, ((_, leaf), where) in enumerate(zip(named, beside, strict=True)):
            if where is None or where.parameter in taken or leaf.dtype != jnp.float32:
                continue
            if leaf.shape != shapes[where.parameter] or np.any(leaf):
                continue
            decay = _decay(*(each[number] for each in values))
            if decay is not None:
                taken.add(where.parameter)
                key = decay, where not in even, where.node
                groups.setdefault(key, {})[leaf_path(where.parameter)] = number
        counts = {
            tuple(keys)[:-1]: n for n, (keys, leaf) in enumerate(named) if is_count(keys, leaf)
        }
        return [*_parts(groups, counts)]


def _parts(
    groups: Mapping[tuple[float, bool, Path], Mapping[str, int]], counts: Mapping[Path, int]
) -> Iterator[MomentPart]:
    steps, divided_steps = range(2)  # the numbers of the first leaves of a `TargetState`
    for (decay, alone, node), leaves in groups.items():
        age = steps if alone else divided_steps
        beside = (counts[node],) if node in counts else ()
        yield MomentPart(decay, alone, age, (age, *beside), leaves)


def _decay(
    once: NDArray[np.float64],
    opposite: NDArray[np.float64],
    twice: NDArray[np.float64],
    thrice: NDArray[np.float64],
) -> float | None:
    """Return the decay of a leaf from its values after one to three steps; None if it has none."""
    size = np.abs(once)
    if not size.all() or not np.allclose(once, -opposite, rtol=ROUNDING):
        return None
    decay = round(float(np.median(twice / once)) - 1, DIGITS)
    is_average = np.allclose(twice, (1 + decay) * once, rtol=ROUNDING) and np.allclose(
        thrice, (1 + decay + decay**2) * once, rtol=ROUNDING
    )
    return decay if 0 < decay < 1 and is_average else None
