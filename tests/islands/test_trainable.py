"""Untrainable tasks are detected from shapes alone, and named by the path of the leaf."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinator.errors import UserMistake
from islands.precision import in_precision
from islands.state_tree import in_one_tree
from islands.task import Batch, Params, Task, load_task
from islands.task_helpers import seeded
from islands.trainable import first_heldout, of_loss, of_parameters, shapes_of
from tests.given import data_spec

BATCH = np.zeros((4, 9), np.int32)
LINE_FIRST = re.compile(rf"{re.escape(__file__)}:\d+: task mine: ")
"""The beginning of a message about a function of this file."""


def sum_of_squares(params: Params, batch: Batch) -> jax.Array:
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)]
    return jnp.sum(jnp.asarray(squares)) + 0 * jnp.sum(batch)


@pytest.fixture
def sound(tmp_path: Path) -> Task:
    task = load_task("byte-tiny", None, {}, data_spec(str(tmp_path)))
    return replace(
        task, name="mine", init=lambda seed: {"w": jnp.ones((2, 3))}, loss=sum_of_squares
    )


def line_of(function: Callable[..., Any], text: str | None = None) -> str:
    """Return "file:line" of a function, or of a line within it."""
    lines, first = inspect.getsourcelines(function)
    inside = 0 if text is None else next(i for i, line in enumerate(lines) if text in line)
    return f"{__file__}:{first + inside}"


def parameters(sound: Task, init: Callable[[], Any]) -> list[str]:
    task = replace(sound, init=lambda seed: init(), stacked=lambda path: path.startswith("blocks"))
    return of_parameters(task, shapes_of(task))


@pytest.mark.parametrize("preset", ["byte-tiny", "byte-1m"])
def test_presets_can_be_trained(preset: str, tmp_path: Path) -> None:
    task = load_task(preset, None, {}, data_spec(str(tmp_path)))
    shapes = shapes_of(task)
    assert of_parameters(task, shapes) == []
    assert of_loss(task, shapes, BATCH) == []


def test_leaves_that_become_float32_can_be_trained(sound: Task) -> None:
    tree = {"numpy": np.ones((2, 2)), "number": 1.0, "nothing": None, "weak": jnp.asarray(2.0)}
    assert parameters(sound, lambda: tree) == []


BLOCKS = {name: jnp.ones((2, 3), jnp.float8_e4m3fn) for name in ("key", "norm", "query", "value")}


@pytest.mark.parametrize(
    ("init", "says"),
    [
        (
            lambda: {"w": jnp.ones(2), "head": {"b": jnp.ones(2, jnp.float8_e4m3fn)}},
            "parameter head/b is float8_e4m3fn[2]: hold it in float32, bfloat16 or float16",
        ),
        (
            lambda: {"blocks": BLOCKS, "w": jnp.ones(2)},
            "parameters blocks/key, blocks/norm, blocks/query and 1 more are float8_e4m3fn: hold "
            "them in float32, bfloat16 or float16",
        ),
        (
            lambda: {"w": jnp.ones(2), "step": np.int32(0)},
            "parameter step is int32[]: only float32 can be trained and merged; make it a constant "
            "of the task, or a part of its batches",
        ),
        (lambda: {"w": jnp.ones(2), "mask": jnp.ones(2, bool)}, "parameter mask is bool[2]: only"),
        (
            lambda: {"w": jnp.ones(2), "key": jax.random.key(0)},
            "parameter key is key<fry>[]: only float32 can be trained",
        ),
        (lambda: {"w": jnp.ones(2), "key": jax.random.PRNGKey(0)}, "parameter key is uint32[2]"),
        (
            lambda: {"w": jnp.ones(2, jnp.complex64)},
            "parameter w is complex64[2]: give its real and its imaginary part a leaf each",
        ),
        (
            lambda: {"w": jnp.ones(2), "none": jnp.ones((3, 0))},
            "parameter none is float32[3,0]: no element is in it; leave it out",
        ),
        (dict, "init returns no parameters"),
        (
            lambda: {"a/b": jnp.ones(2), "a": {"b": jnp.ones(2)}},
            "two parameters are called a/b: name one of them otherwise",
        ),
        (
            lambda: {"blocks": {"scale": jnp.ones(())}},
            "parameter blocks/scale is float32[]: `stacked` is true of it, and there is no axis",
        ),
    ],
)
def test_names_untrainable_parameters(sound: Task, init: Callable[[], Any], says: str) -> None:
    (problem,) = parameters(sound, init)
    assert problem.startswith(f"{line_of(parameters, 'init()')}: task mine: ")
    assert says in problem


def test_each_kind_of_mistake_is_reported_once(sound: Task) -> None:
    tree = {"a": jnp.ones(2, jnp.float8_e5m2), "b": np.int8(1), "c": jnp.ones(0)}
    assert len(parameters(sound, lambda: tree)) == 3


def test_refuses_leaves_that_are_not_arrays_with_their_path(sound: Task) -> None:
    task = replace(sound, init=lambda seed: {"layer": {"activation": jnp.tanh}})
    with pytest.raises(UserMistake, match=r"task mine: init .*'layer'.*'activation'"):
        shapes_of(task)


def a_defect(seed: int) -> Params:
    return {"w": jnp.ones(2) + jnp.ones(3)}


def test_error_in_init_is_reported_with_its_line(sound: Task) -> None:
    with pytest.raises(UserMistake) as caught:
        shapes_of(replace(sound, init=a_defect))
    where = line_of(a_defect, "jnp.ones(3)")
    begins = f"{where}: task mine: init raises TypeError: add got incompatible shapes"
    assert str(caught.value).startswith(begins)
    assert str(caught.value).endswith("(in a_defect)")


@jax.custom_vjp
def one_way(x: jax.Array) -> jax.Array:
    return x


def no_way_back(*_: object) -> Any:
    raise NotImplementedError("there is no way back")


one_way.defvjp(lambda x: (x, None), no_way_back)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda p, b: p["w"], "loss gives float32[2,3] for a batch of int32[4,9]: it must be one"),
        (lambda p, b: jnp.sum(p["w"]).astype(int), "loss gives int32[]"),
        (lambda p, b: jnp.sum(p["w"]) * 1j, "loss gives complex64[]"),
        (lambda p, b: (jnp.sum(p["w"]), {}, 1), "loss gives a tuple"),
        (
            lambda p, b: (jnp.sum(p["w"]), 1),
            "loss gives int32[] beside the number: its m",
        ),
        (lambda p, b: (p["w"].sum(), {"w": p["w"]}), "gives float32[2,3] for its metric 'w'"),
        (lambda p, b: (p["w"].sum(), {"w": "x"}), "loss raises TypeError"),
        (
            lambda p, b, key: p["w"].sum() * jax.random.uniform(key),
            "loss, with None for its key, r",
        ),
        (lambda p, b: None, "loss gives a NoneType"),
        (lambda p, b: float(jnp.sum(p["w"])), "loss raises ConcretizationTypeError"),
        (lambda p, b: p["v"], "loss raises KeyError: 'v'"),
        (lambda p, b: one_way(jnp.sum(p["w"])), "gradient of loss raises NotImplementedError"),
    ],
)
def test_reports_a_loss_that_cannot_be_minimized(
    sound: Task, loss: Callable[[Any, Any], Any], says: str
) -> None:
    task = replace(sound, loss=loss)
    (problem,) = of_loss(task, shapes_of(task), BATCH)
    assert LINE_FIRST.match(problem), problem
    assert says in problem


@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16])
def test_loss_may_be_of_any_float_type(sound: Task, kind: Any) -> None:
    task = replace(sound, loss=lambda p, b: sum_of_squares(p, b).astype(kind))
    assert of_loss(task, shapes_of(task), BATCH) == []


def test_reports_a_batch_without_a_window_axis(sound: Task) -> None:
    shapes = shapes_of(sound)
    (problem,) = of_loss(sound, shapes, {"x": BATCH, "count": 3})
    assert (
        "task mine: count of a held-out batch is no array with the windows on its first axis"
        in (problem)
    )


def test_checks_compute_nothing(sound: Task) -> None:
    """Here an array too large for any machine is only a shape."""
    task = replace(sound, init=lambda seed: {"w": jnp.zeros((2**20, 2**20))})
    shapes = shapes_of(task)
    assert of_parameters(task, shapes) == []
    assert of_loss(task, shapes, BATCH) == []


def scanned(params: Params, batch: Batch) -> jax.Array:
    """Two layers in a scan; each layer's `statistics` is carried along without use in the loss."""

    def layer(x: jax.Array, leaves: Params) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(x @ leaves["w"]), jax.lax.stop_gradient(leaves["statistics"])

    x, kept = jax.lax.scan(layer, jnp.ones((1, 3)), params["layers"])
    return jnp.sum(x) + 0 * jnp.sum(kept) + 0 * jnp.sum(jnp.asarray(batch, jnp.float32))


@pytest.mark.parametrize(
    ("init", "loss", "says"),
    [
        (
            lambda seed: {"w": jnp.ones(2), "bn": {"mean": jnp.zeros(2)}},
            lambda p, b: jnp.sum(jnp.square(p["w"])),
            "parameter bn/mean is float32[2]: the loss has no gradient for it, whatever the",
        ),
        (
            lambda seed: {"w": jnp.ones(2), "bn": {"mean": jnp.zeros(2)}},
            lambda p, b: jnp.sum(jnp.square(p["w"] - jax.lax.stop_gradient(p["bn"]["mean"]))),
            "parameter bn/mean is float32[2]: the loss has no gradient for it",
        ),
        (
            lambda seed: {"layers": {"w": jnp.ones((2, 3, 3)), "statistics": jnp.ones((2, 3))}},
            jax.jit(scanned),
            "parameter layers/statistics is float32[2,3]: the loss has no gradient for it",
        ),
        (
            lambda seed: {name: jnp.ones(2) for name in "abcde"},
            lambda p, b: jnp.sum(jnp.square(p["a"])),
            "parameters b, c, d and 1 more are float32: the loss has no gradient for them",
        ),
    ],
)
def test_names_a_leaf_without_a_gradient(
    sound: Task, init: Callable[[int], Params], loss: Callable[..., jax.Array], says: str
) -> None:
    task = replace(sound, init=init, loss=loss)
    (problem,) = of_loss(task, shapes_of(task), BATCH)
    assert LINE_FIRST.match(problem), problem
    assert says in problem
    assert re.search(r"; return (it|them) from Task\.frozen, use (it|them) in the loss,", problem)


def test_accepts_a_leaf_that_only_some_batches_use(sound: Task) -> None:
    def loss(params: Params, batch: Batch) -> jax.Array:
        return jax.lax.cond(
            jnp.sum(batch) > 0,
            lambda: jnp.sum(jnp.square(params["rare"])),
            lambda: jnp.sum(jnp.square(params["w"])),
        )

    task = replace(sound, init=lambda seed: {"w": jnp.ones(2), "rare": jnp.ones(2)}, loss=loss)
    assert of_loss(task, shapes_of(task), BATCH) == []


# --- the user's line in each wrapper --------------------------------------------------------------


def of_state(params: Params, state: Any, batch: Batch) -> Any:
    return jnp.sum(params["w"]) + 0 * jnp.sum(batch), ({"mean": state["mean"][:1]}, {})


def no_scalar(params: Params, batch: Batch, key: Any = None) -> Any:
    return params["w"]


def evaluates(params: Params, batch: Batch) -> Any:
    return jnp.ones(3)


def from_key(key: jax.Array) -> Params:
    return {"w": jnp.ones(2, jnp.int8)}


def state_of_bytes(seed: int) -> Any:
    return {"mean": np.zeros(2, np.int8)}


def test_state_that_changes_its_form_is_refused_with_the_line_of_the_loss(sound: Task) -> None:
    given = replace(sound, loss=of_state, init_state=lambda seed: {"mean": jnp.zeros(2)})
    task = in_precision(in_one_tree(given), "bfloat16", "all")
    (problem,) = of_loss(task, shapes_of(task), BATCH)
    assert problem.startswith(f"{line_of(of_state)}: task mine: loss must return (loss, (state")


def test_state_that_cannot_be_merged_is_refused_with_the_line_of_its_function(sound: Task) -> None:
    task = in_one_tree(replace(sound, loss=of_state, init_state=state_of_bytes))
    (problem,) = of_parameters(task, shapes_of(task))
    assert problem.startswith(f"{line_of(state_of_bytes)}: task mine: parameter state/mean is int8")


def test_lines_are_those_within_partials_jit_and_our_helpers(sound: Task) -> None:
    task = replace(sound, init=seeded(from_key), loss=jax.jit(partial(no_scalar, key=None)))
    (problem,) = of_parameters(task, shapes_of(task))
    assert problem.startswith(f"{line_of(from_key)}: task mine: parameter w is int8[2]")
    task = replace(task, init=sound.init)
    (problem,) = of_loss(task, shapes_of(task), BATCH)
    assert problem.startswith(f"{line_of(no_scalar)}: task mine: loss gives float32[2,3]")


def test_evaluation_is_refused_with_its_own_line(sound: Task) -> None:
    task = replace(sound, eval_loss=evaluates)
    (problem,) = of_loss(task, shapes_of(task), BATCH)
    assert problem.startswith(f"{line_of(evaluates)}: task mine: eval_loss gives float32[3]")


def test_line_of_the_user_comes_before_that_of_a_library_that_raises(sound: Task) -> None:
    def reads(params: Params, batch: Batch) -> Any:
        return json.loads("not JSON")

    task = replace(sound, loss=reads)
    (problem,) = of_loss(task, shapes_of(task), BATCH)
    where = line_of(reads, "json.loads")
    assert problem.startswith(f"{where}: task mine: loss raises JSONDecodeError: ")


def no_batches(batch_size: int) -> list[Batch]:
    return []


def test_task_without_heldout_batches_is_refused_with_its_line(sound: Task) -> None:
    with pytest.raises(UserMistake) as caught:
        first_heldout(replace(sound, heldout=no_batches), 8)
    begins = f"{line_of(no_batches)}: task mine: heldout returns no batches of size 8"
    assert str(caught.value).startswith(begins)
