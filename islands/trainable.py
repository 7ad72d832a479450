"""The checks of a user's task before it is trained, from shapes alone: nothing is computed.

An island would find the same problems when it compiles its step, in one process after another, with
JAX's own messages. The start of a run checks here first. A message begins with the file and line of
the user's function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import partial_eval

from coordinator.errors import UserMistake
from islands.loop_task import problems_of_evaluation
from islands.losses import LossResult, evaluation_loss, frozen_of, training_loss
from islands.precision import LossInPrecision
from islands.state_tree import FROZEN, KEY, STATE, named_arguments, refused_argument
from islands.task import Batch, Params, Task, leaf_path
from islands.user_code import asked
from islands.user_lines import place_of, raised_by

Named: TypeAlias = tuple[str, Any]
"""A leaf's path, and its shape and dtype."""
T = TypeVar("T")

NAMED = 3
"""Leaves that one problem names before it only counts them."""
UNTRAINED = (
    "only float32 can be trained and merged; make {it} a constant of the task, or a part of its "
    "batches"
)

UNTOUCHED = (
    "the loss has no gradient for {it}, whatever the parameters and the batch are: nothing would "
    "train {it}, and weight decay would shrink {it}; return {it} from Task.frozen, use {it} in the "
    "loss, make {it} a constant of the task, or, for batch statistics, return {it} from "
    "Task.init_state"
)


def shapes_of(task: Task) -> Params:
    """Return the task's parameters as `jax.ShapeDtypeStruct`.

    Errors: `UserMistake` if `init` raises, or returns what JAX cannot hold.
    """
    return _traced(task, "init", task.init, lambda: task.shapes)


def of_parameters(task: Task, shapes: Params) -> list[str]:
    """Return why parameters of these shapes cannot be trained and merged; empty if they can.

    The merge, the wires and the optimizers work in float32, and each island differentiates with
    respect to every leaf.
    """
    leaves = [(leaf_path(keys), leaf) for keys, leaf in _flat(shapes)]
    place, problems = place_of(task.init), list[str]()
    if not leaves:
        problems.append(f"{place}task {task.name}: init returns no parameters")
    advised: dict[str, list[Named]] = {}
    for path, leaf in leaves:
        for advice in _advice(task, path, leaf):
            advised.setdefault(advice, []).append((path, leaf))
    for advice, named in advised.items():
        made_by = place_of(_maker(task, named[0][0]))
        problems.append(f"{made_by}task {task.name}: {_about(named, advice)}")
    twice = [path for path, times in Counter(path for path, _ in leaves).items() if times > 1]
    return problems + [
        f"{place}task {task.name}: two parameters are called {path}: name one of them otherwise"
        for path in twice
    ]


def first_heldout(task: Task, batch_size: int) -> Batch:
    """Return the first held-out batch, after a check of what counts its tokens.

    Errors: `UserMistake` if there is none; the errors of `Task.heldout` and `Task.tokens`.
    """
    batches: Any = task.heldout(batch_size)
    place, setting = place_of(task.heldout), f"task {task.name}: heldout"
    if asked(setting, lambda: len(batches), place=place) == 0:
        raise UserMistake(
            f"{place}{setting} returns no batches of size {batch_size}: nothing would be "
            "evaluated; return at least one"
        )
    first = asked(setting, lambda: batches[0], place=place)
    task.tokens(first)
    return first


def of_loss(task: Task, shapes: Params, batch: Batch) -> list[str]:
    """Return why the loss of such a batch cannot be minimised; empty if it can."""
    try:
        problems = [*_of_batch(task, batch)] or (
            [*_of_loss(task, shapes, batch)]
            if task.evaluate is None
            else problems_of_evaluation(task, shapes, batch)
        )
    except UserMistake as error:
        return [str(error)]
    return problems


def _of_batch(task: Task, batch: Batch) -> Iterator[str]:
    for keys, leaf in _flat(batch):
        if not getattr(leaf, "shape", ()):
            yield (
                f"{place_of(task.heldout)}task {task.name}: {leaf_path(keys) or 'the whole'} of a "
                f"held-out batch is no array with the windows on its first axis, but {leaf!r}"
            )


def _of_loss(task: Task, shapes: Params, batch: Batch) -> Iterator[str]:
    for name, function in (("loss", task.loss), ("eval_loss", task.eval_loss)):
        own = function.loss if isinstance(function, LossInPrecision) else function
        if own is not None and (problem := refused_argument(own, name)):
            yield f"{place_of(own)}task {task.name}: {problem}"
            return
    key = jax.eval_shape(lambda: jax.random.key(0))
    frozen = _traced(task, "frozen", task.frozen, lambda: jax.eval_shape(lambda: frozen_of(task)))
    given = {KEY: key, FROZEN: frozen}
    named = {name: given[name] for name in named_arguments(task.loss)}
    place = f"{place_of(task.loss)}task {task.name}: "
    if problem := _of_frozen(task):
        yield place + problem
        return
    training, evaluation = training_loss(task), evaluation_loss(task)
    evaluated = "loss, with None for its key," if task.eval_loss is None else "eval_loss"
    judges = task.loss if task.eval_loss is None else task.eval_loss
    forms: list[tuple[str, Any, Callable[[], Any]]] = [
        ("loss", task.loss, lambda: jax.eval_shape(training, shapes, batch, named)),
        (evaluated, judges, lambda: jax.eval_shape(evaluation, shapes, batch, frozen)),
    ]
    for name, function, call in forms if task.loop is None else forms[1:]:
        result: Any = _traced(task, name, function, call)
        problems = [*_of_result(name, result[0], result[-1], batch)]
        if isinstance(result, LossResult) and task.init_state is not None:
            problems += _of_state(name, shapes[STATE], result.state)
        if problems:
            yield f"{place_of(function)}task {task.name}: {problems[0]}"
            return
    if task.loop is not None:  # it has its own loss
        return
    trace = jax.make_jaxpr(jax.grad(lambda *each: training(*each).loss))
    gradient = _traced(task, "the gradient of loss", task.loss, lambda: trace(shapes, batch, named))
    yield from (place + problem for problem in _untouched(task, shapes, gradient))


def _of_result(name: str, loss: Any, metrics: Any, batch: Batch) -> Iterator[str]:
    """Yield why these cannot be a loss and its metrics."""
    if not isinstance(loss, jax.ShapeDtypeStruct):
        result = _kind(loss)
    elif loss.shape or not jnp.issubdtype(loss.dtype, jnp.floating):
        result = _shape_text(loss)
    else:
        yield from _of_metrics(name, metrics)
        return
    leaves = ", ".join(_shape_text(leaf) for leaf in jax.tree.leaves(batch))
    yield (
        f"{name} gives {result} for a batch of {leaves}: it must be one real number, the mean of "
        "the batch in nats per token, or a pair of that number and its metrics"
    )


def _of_frozen(task: Task) -> str:
    """Return how `frozen` and the arguments of the loss disagree; empty if they do not."""
    takes = FROZEN in named_arguments(task.loss)
    if takes and task.frozen is None:
        return "loss has an argument `frozen`, and the task has no frozen arrays"
    if task.frozen is not None and not takes:
        return "the task has frozen arrays, and its loss has no argument `frozen`"
    return ""


def _of_state(name: str, before: Any, after: Any) -> list[str]:
    """Return why this cannot be the state after a step; empty if it can."""
    old, new = dict(_named(before)), dict(_named(after))
    differing = [
        f"{path} ({_shape_text(old[path]) if path in old else 'none'} before, "
        f"{_kind(new[path]) if path in new else 'none'} after)"
        for path in {**old, **new}
        if path not in old
        or path not in new
        or (old[path].shape, old[path].dtype)
        != (getattr(new[path], "shape", None), getattr(new[path], "dtype", None))
    ]
    if not differing:
        return []
    return [
        f"{name} must return (loss, (state, metrics)) with the state as it came, and changes its "
        f"form: {', '.join(differing[:NAMED])}"
    ]


def _named(tree: Any) -> list[Named]:
    return [(leaf_path(keys) or "(the whole)", leaf) for keys, leaf in _flat(tree)]


def _of_metrics(name: str, metrics: Any) -> Iterator[str]:
    if not isinstance(metrics, Mapping):
        yield (
            f"{name} gives {_kind(metrics)} beside the number: its metrics must be a "
            'mapping of names to scalars, such as {"accuracy": accuracy}'
        )
        return
    for key, value in metrics.items():
        if not isinstance(value, jax.ShapeDtypeStruct) or value.shape:
            yield f"{name} gives {_kind(value)} for its metric {key!r}: a metric must be one number"


def _kind(value: Any) -> str:
    return _shape_text(value) if hasattr(value, "dtype") else f"a {type(value).__name__}"


def _untouched(task: Task, shapes: Params, gradient: jax.extend.core.ClosedJaxpr) -> Iterator[str]:
    """Yield one problem about all leaves whose gradient is structurally zero, if there are any.

    No parameter and no batch changes such a gradient. Statistics of batches that are no state are
    such leaves, and so is a parameter that the loss does not read. The optimizer would only decay
    them, and the merge would average leaves that no learner trained.
    """
    count = len(gradient.jaxpr.outvars)
    found: list[Named] = []
    for number, (keys, leaf) in enumerate(_flat(shapes)):
        wanted = [position == number for position in range(count)]
        _, used = partial_eval.dce_jaxpr(gradient.jaxpr, wanted)
        if not any(used) and not task.state(leaf_path(keys)):
            found.append((leaf_path(keys), leaf))
    if found:
        yield _about(found, UNTOUCHED)


def _advice(task: Task, path: str, leaf: Any) -> Iterator[str]:
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        yield "give {its} real and {its} imaginary part a leaf each"
    elif not jnp.issubdtype(leaf.dtype, jnp.floating):
        yield UNTRAINED
    elif leaf.dtype != jnp.float32:
        yield "hold {it} in float32, bfloat16 or float16"
    if 0 in leaf.shape:
        yield "no element is in {it}; leave {it} out"
    if not leaf.shape and task.stacked(path):
        yield "`stacked` is true of {it}, and there is no axis to stack layers on"


def _about(found: Sequence[Named], advice: str) -> str:
    """Return the advice once for all leaves that need it."""
    if len(found) == 1:
        ((path, leaf),) = found
        return f"parameter {path or '(the whole)'} is {_shape_text(leaf)}: " + advice.format(
            it="it", its="its"
        )
    named = ", ".join(path for path, _ in found[:NAMED])
    more = len(found) - NAMED
    kinds = " or ".join(sorted({str(leaf.dtype) for _, leaf in found}))
    return (
        f"parameters {named}{f' and {more} more' if more > 0 else ''} are {kinds}: "
        + advice.format(it="them", its="their")
    )


def _shape_text(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _flat(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def _maker(task: Task, path: str) -> Any:
    """Return the user's function that makes this leaf: `init`, or `init_state`."""
    return getattr(task.init, "init_state", task.init) if task.state(path) else task.init


def _traced(task: Task, name: str, function: Any, call: Callable[[], T]) -> T:
    """Run the user's function on shapes; report an exception with the line that raised it.

    Errors: `UserMistake`.
    """
    place = place_of(function)
    try:
        return call()
    except Exception as error:
        if isinstance(error, UserMistake) and place and str(error).startswith(place):
            raise  # a message of ours that is complete
        raise UserMistake(raised_by(f"task {task.name}: {name}", error, place)) from error
