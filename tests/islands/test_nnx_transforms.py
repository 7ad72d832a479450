"""Models of Flax NNX whose layers are inside a transform, which writes all variables back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax

import archipelago
from islands.adapters.value_origins import Elsewhere, is_other, origins
from islands.inner import Inner
from islands.state_tree import in_one_tree
from islands.task import Task
from islands.trainable import of_loss, of_parameters, shapes_of
from tests.given import data_spec, optimizer_spec

WIDTH, COUNT, DEPTH = 4, 240, 3
SECOND = nnx.StateAxes({nnx.Param: 1, ...: 0})


def points() -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(0, 1, (COUNT, WIDTH)).astype("f4")
    return {"x": x, "y": (x.sum(1) > 0).astype("i4")}


class Layer(nnx.Module):
    """A layer with all kinds of variables."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.drop(jax.nn.relu(self.norm(self.linear(x))))


def call(layer: Layer, x: jax.Array) -> jax.Array:
    return layer(x)


def scale(layer: Layer, x: jax.Array) -> jax.Array:
    layer.linear.kernel.set_value(0.99 * layer.linear.kernel.get_value())
    return layer(x)


def bias_of(module: nnx.Linear | nnx.BatchNorm) -> Any:
    assert module.bias is not None
    return module.bias


def keep_mean(layer: Layer, x: jax.Array) -> jax.Array:
    bias_of(layer.linear).set_value(x.mean(0))
    return layer(x)


def clear(layer: Layer, x: jax.Array) -> jax.Array:
    bias_of(layer.linear).set_value(jnp.zeros(WIDTH))
    return layer(x)


def keep_row(layer: Layer, x: jax.Array) -> jax.Array:
    kernel = layer.linear.kernel
    kernel.set_value(kernel.get_value().at[0].set(x[0]))
    return layer(x)


def exchange(layer: Layer, x: jax.Array) -> jax.Array:
    bias_of(layer.linear).set_value(bias_of(layer.norm).get_value())
    return layer(x)


def carried(layer: Layer, x: jax.Array) -> jax.Array:
    both: Any = nnx.fori_loop(0, 2, lambda i, c: (c[0], c[0](c[1])), (layer, x))
    return both[1]


def scanned_as_carry(layer: Layer, x: jax.Array) -> jax.Array:
    run = nnx.scan(lambda c: (c[0], c[0](c[1])), in_axes=(nnx.Carry,), out_axes=nnx.Carry, length=2)
    both: Any = run((layer, x))
    return both[1]


def branch(layer: Layer, x: jax.Array) -> jax.Array:
    chosen: Any = nnx.cond(x.sum() < 1e9, call, lambda layer, x: x, layer, x)
    return chosen


def branch_that_assigns(layer: Layer, x: jax.Array) -> jax.Array:
    chosen: Any = nnx.cond(x.sum() < 1e9, keep_mean, lambda layer, x: x, layer, x)
    return chosen


def doubled(layer: Layer, x: jax.Array) -> jax.Array:
    """Call a layer whose kernel is doubled wherever it is read."""
    layer.linear.kernel.set_metadata(on_get_value=lambda variable, value: 2 * value)
    return layer(x)


def single(run: Callable[[Layer, Any], Any]) -> Callable[[nnx.Rngs], nnx.Module]:
    """Return the maker of a model of one layer that is called by `run`."""

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.layer = Layer(rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return run(self.layer, x)

    return Model


def stacked(run: Callable[[Layer, Any], Any], axes: Any = 0) -> Callable[[nnx.Rngs], nnx.Module]:
    """Return the maker of a model of several layers that is called by `run`."""

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            in_axes = nnx.StateAxes({nnx.RngState: 0})
            make = nnx.vmap(Layer, in_axes=(in_axes,), out_axes=axes)
            self.layers = nnx.split_rngs(splits=DEPTH)(make)(rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return run(self.layers, x)

    return Model


def over_layers(step: Callable[[Layer, Any], Any], axes: Any = 0) -> Callable[[Layer, Any], Any]:
    return nnx.scan(step, in_axes=(axes, nnx.Carry), out_axes=nnx.Carry)


def side_by_side(layers: Layer, x: jax.Array) -> jax.Array:
    return nnx.vmap(call, in_axes=(0, None), out_axes=0)(layers, x).sum(0)


def task_of(make: Callable[[nnx.Rngs], nnx.Module]) -> Task:
    def loss(model: Any, batch: Any) -> jax.Array:
        logits = model(batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    data = data_spec("", lease_windows=16, heldout_percent=20.0)
    return in_one_tree(archipelago.nnx_task(make, loss, data, examples=points, classes=WIDTH))


def problems(task: Task) -> list[str]:
    shapes = shapes_of(task)
    return of_parameters(task, shapes) + of_loss(task, shapes, task.heldout(16)[0])


SOUND: dict[str, Callable[[nnx.Rngs], nnx.Module]] = {
    "plain": single(call),
    "remat": single(nnx.remat(call)),
    "a hook": single(doubled),
    "jit": single(nnx.jit(call)),
    "remat in jit": single(nnx.jit(nnx.remat(call))),
    "fori_loop": single(carried),
    "scan that carries": single(scanned_as_carry),
    "cond": single(branch),
    "scan": stacked(over_layers(call)),
    "scan of remat": stacked(over_layers(nnx.remat(call))),
    "remat of scan": stacked(nnx.remat(over_layers(call))),
    "scan over the second axis": stacked(over_layers(nnx.remat(call), SECOND), SECOND),
    "vmap": stacked(side_by_side),
}


@pytest.mark.parametrize("name", SOUND)
def test_model_with_a_transform_is_sound(name: str) -> None:
    assert problems(task_of(SOUND[name])) == []


def test_model_of_scanned_layers_is_trained() -> None:
    task = task_of(SOUND["scan of remat"])
    inner, rows = Inner(task, optimizer_spec()), task.heldout(16)[0]
    before = task.init(0)
    state, measures = inner.step(inner.start(task.init(0)), rows, 0)
    assert np.isfinite(float(measures.loss))
    moved = jax.tree.map(lambda a, b: bool(np.any(a != np.asarray(b))), before, state.params)
    assert all(jax.tree.leaves(moved["state"])), "the statistics of all layers are kept"


ASSIGNED: dict[str, tuple[Callable[[nnx.Rngs], nnx.Module], str]] = {
    "plain": (single(scale), "layer/linear/kernel"),
    "in remat": (single(nnx.remat(scale)), "layer/linear/kernel"),
    "in jit": (single(nnx.jit(keep_mean)), "layer/linear/bias"),
    "in one branch": (single(branch_that_assigns), "layer/linear/bias"),
    "in scan": (stacked(over_layers(scale)), "layers/linear/kernel"),
    "a constant": (single(clear), "layer/linear/bias"),
    "a part": (single(nnx.remat(keep_row)), "layer/linear/kernel"),
    "another parameter": (single(nnx.jit(exchange)), "layer/linear/bias"),
}


@pytest.mark.parametrize("name", ASSIGNED)
def test_assigned_parameter_is_refused_inside_a_transform(name: str) -> None:
    make, path = ASSIGNED[name]
    (problem,) = problems(task_of(make))
    assert f"the loss assigns the parameter {path}: only its gradient changes" in problem


# --- the origins of a value -----------------------------------------------------------------------


def shifted(pair: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
    return (pair[1], pair[0]), None


COMPUTED, UNKNOWN = Elsewhere.COMPUTED, Elsewhere.UNKNOWN
ORIGINS: dict[str, tuple[Callable[[Any, Any], Any], list[set[Any]]]] = {
    "both": (lambda a, b: (b, a), [{1}, {0}]),
    "moved": (lambda a, b: (a.T.T, b.astype("bfloat16").astype("float32")), [{0}, {1}]),
    "one of two": (lambda a, b: jnp.concatenate([a, b])[:2], [{0, 1}]),
    "computed": (lambda a, b: (a + b, jnp.ones(2)), [{COMPUTED}, {COMPUTED}]),
    "while": (
        lambda a, b: lax.while_loop(lambda c: c[0].sum() < 9, lambda c: (c[0] + 1, c[1]), (a, b)),
        [{COMPUTED}, {1}],
    ),
    "exchanged in turn": (
        lambda a, b: lax.scan(shifted, (a, b), length=2)[0],
        [{UNKNOWN}, {UNKNOWN}],
    ),
    "scanned": (
        lambda a, b: lax.scan(jax.checkpoint(lambda c, x: (c + x.sum(), x)), 0.0, a)[1],
        [{0}],
    ),
    "no known operation": (lambda a, b: lax.top_k(a, 1)[0], [{UNKNOWN}]),
}


@pytest.mark.parametrize("name", ORIGINS)
def test_origins_of_a_result(name: str) -> None:
    function, wanted = ORIGINS[name]
    shape = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    assert [{*each} for each in origins(jax.make_jaxpr(function)(shape, shape))] == wanted


@pytest.mark.parametrize(
    ("found", "other"),
    [({1}, False), ({0}, True), ({0, 1}, False), ({1, COMPUTED}, True), ({0, UNKNOWN}, False)],
)
def test_result_is_refused_only_if_it_cannot_be_the_argument(found: set[Any], other: bool) -> None:
    assert is_other(frozenset(found), 1) is other
