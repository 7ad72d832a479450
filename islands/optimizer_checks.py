"""The checks of the user's own optimizer and schedule before anything is trained.

Shapes are traced. What shapes do not show, such as the sign of an update, is tried for a step or
two on random parameters and a random gradient. Built-in optimizers and schedules are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from coordinator.errors import UserMistake
from islands import schedules
from islands.moment_search import Trial, tried
from islands.moments import NO_MOMENTS
from islands.optimizer import OptimizerSpec
from islands.optimizer_target import KEY, besides, load_target, place_of_target
from islands.task import Params, Task, leaf_path
from islands.user_code import asked, attribute_of
from islands.user_lines import place_of

SCHEDULE = "optimizer.schedule"
CLOCKS = 17
"""The clocks from 0 to the horizon at which a schedule is asked for its rate."""
TRACED = ": it is compiled and gets the clock as a traced int32, so use jnp.where in place of `if`"
CALLED = (
    "; it is called as init(params) and update(gradients, state, params), without other arguments"
)
BUILT_IN = ("cosine", "wsd", schedules.OF_TARGET)


def of_optimizer(
    spec: OptimizerSpec, task: Task, *, merges: bool = True, shares: bool = False
) -> list[str]:
    """Return why this optimizer cannot train this task; empty if it can.

    `merges`: islands merge fragments, and do not sum gradients. `shares`: they share first moments.
    """
    problems = list[str]()
    for check in (_of_schedule(spec), _of_target(spec, task, merges=merges, shares=shares)):
        try:
            problems += check
        except UserMistake as error:
            problems.append(str(error))
    return problems


def _of_schedule(spec: OptimizerSpec) -> Iterator[str]:
    if spec.schedule in BUILT_IN:
        return
    setting = f'{SCHEDULE} = "{spec.schedule}"'
    place = place_of(found := attribute_of(SCHEDULE, spec.schedule))
    if not callable(found):
        yield f"{setting} is {type(found).__name__}, not a function of the clock"
        return
    clock = jax.ShapeDtypeStruct((), jnp.int32)
    traced = asked(setting, lambda: jax.eval_shape(found, clock), TRACED, place)
    if getattr(traced, "shape", None) != () or not _is_real(traced.dtype):
        returned = f"{place}{setting} returns {_text(traced)}"
        yield f"{returned} for a clock: it must return one number, the rate"
        return
    for clock in np.linspace(0, spec.horizon_steps, CLOCKS, dtype=np.int32).tolist():
        if not 0 <= (rate := float(spec.rate(clock))) < np.inf:
            yield f"{place}{setting} gives the rate {rate:g} at clock {clock}: it must be 0 or more"
            return


def _of_target(spec: OptimizerSpec, task: Task, *, merges: bool, shares: bool) -> Iterator[str]:
    if spec.target is None:
        return
    setting, shapes = f'{KEY} = "{spec.target}"', task.shapes
    target = load_target(spec.target, dict(spec.options), spec.pickled)
    place = place_of_target(spec.target, spec.pickled) or place_of(target.update)
    found = [*_of_shapes(setting, place, target, shapes, merges=merges)]
    yield from (f"{place}{setting}: {problem}" for problem in found)
    if found:
        return
    trial = Trial(spec, task, smaller := tried(shapes))
    try:
        found = asked(setting, lambda: [*_of_trial(trial, merges=merges)], place=place)
        yield from (f"{place}{setting}: {problem}" for problem in found)
        if shares and not asked(setting, trial.first_moments, place=place):
            yield NO_MOMENTS.format(spec.target)
    except UserMistake:
        if smaller is shapes or shares:
            raise
        # A target that is made for the shapes of a large model cannot be tried on shorter axes.


def _of_shapes(
    setting: str,
    place: str,
    target: optax.GradientTransformation,
    shapes: Params,
    *,
    merges: bool,
) -> Iterator[str]:
    """Yield what is wrong with the shapes and types of state and updates, each kind once."""
    state = asked(setting, lambda: jax.eval_shape(target.init, shapes), CALLED, place)
    updates, after = asked(
        setting, lambda: jax.eval_shape(target.update, shapes, state, shapes), CALLED, place
    )
    yield from _differences("its updates", updates, "the parameters", shapes)
    yield from _differences("its state after an update", after, "its state before", state)
    for keys, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if not _is_number(leaf.dtype):
            yield (
                f"{leaf_path(keys)} of its state is {_text(leaf)}, which cannot be given to a "
                "learner that joins: hold numbers (of a random key, jax.random.key_data)"
            )
            return
        elif not merges and np.dtype(leaf.dtype).kind not in "fiub":
            yield (
                f"{leaf_path(keys)} of its state is {_text(leaf)}, which the snapshots of this "
                "run.mode cannot hold: use float32"
            )
            return


def _of_trial(trial: Trial, *, merges: bool) -> Iterator[str]:
    """Yield what is wrong with the state and the first update for random numbers."""
    named = jax.tree_util.tree_flatten_with_path(trial.init())[0]
    if wrong := [leaf_path(keys) for keys, leaf in named if not np.isfinite(leaf).all()]:
        yield f"its state before the first step is not finite: {', '.join(wrong[:3])}"
        return
    own = {
        tuple(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(trial.params)[0]
    }
    pairs = zip(named, besides(named, trial.params), strict=True)
    copies = [
        leaf_path(keys) for (keys, leaf), at in pairs if at and _same(leaf, own[at.parameter])
    ]
    if copies and merges:
        yield (
            f"its state holds a copy of the parameters ({copies[0]}), which a merge would not "
            'change; use run.mode = "data-parallel", or a target that keeps no copy'
        )
    updates = [np.asarray(each, np.float64) for each in jax.tree.leaves(trial.steps(1, 1)[0])]
    gradients = [np.asarray(each, np.float64) for each in jax.tree.leaves(trial.gradient)]
    if not all(np.isfinite(each).all() for each in updates):
        yield "its first update for a random gradient is not finite"
    elif sum(float(np.vdot(u, g)) for u, g in zip(updates, gradients, strict=True)) > 0:
        yield (
            "its first update goes up the loss, along the gradient: updates are added to the "
            "parameters, so end the chain with optax.scale(-1.0), as optax.lion(1.0) does"
        )


def _differences(what: str, given: Any, other: str, wanted: Any) -> Iterator[str]:
    """Yield the first difference in structure, shape or type."""
    if (found := jax.tree.structure(given)) != (ours := jax.tree.structure(wanted)):
        yield f"{what} have the structure {_short(found)}, and {other} {_short(ours)}"
        return
    pairs = zip(jax.tree_util.tree_leaves_with_path(given), jax.tree.leaves(wanted), strict=True)
    for (keys, leaf), like in pairs:
        if (leaf.shape, leaf.dtype) != (like.shape, like.dtype):
            path = leaf_path(keys) or "the whole"
            yield f"{what} have {_text(leaf)} at {path}, and {other} {_text(like)}"
            return


def _same(leaf: Any, parameter: Any) -> bool:
    return leaf.shape == parameter.shape and leaf.ndim > 0 and bool(np.all(leaf == parameter))


def _is_number(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)


def _is_real(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)


def _text(leaf: Any) -> str:
    if not hasattr(leaf, "shape"):
        return f"a {type(leaf).__name__}"
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _short(structure: Sequence[Any] | Any) -> str:
    text = str(structure).removeprefix("PyTreeDef(").removesuffix(")")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


LONGEST = 80
"""The most characters of a structure in a message."""
