"""Models of Flax NNX, Flax Linen and Equinox as tasks, with the real libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import archipelago
from coordinator.errors import UserMistake
from coordinator.protocol import Island, Lease
from islands.adapters.leaf_trees import leaves_of
from islands.adapters.model_parts import library
from islands.inner import Inner
from islands.losses import evaluation_loss
from islands.randomness import Draws, key_of
from islands.sources import DataSpec
from islands.state_tree import in_one_tree
from islands.task import Task
from islands.trainable import of_loss, of_parameters, shapes_of
from tests.given import data_spec, first_of, optimizer_spec, sums

WIDTH, CLASSES, COUNT, RATE = 32, 3, 240, 0.5


def points() -> dict[str, np.ndarray]:
    """Return points of three classes that are far from the origin, so that statistics must move."""
    draws = np.random.default_rng(0)
    y = draws.integers(0, CLASSES, COUNT).astype("i4")
    centers = np.array([[0, 0, 0, 6], [0, 5, 0, 0], [5, 0, 0, 0]], "f4")
    x = 4 + centers[y] + draws.normal(0, 1, (COUNT, 4))
    return {"x": x.astype("f4"), "y": y}


def result(logits: jax.Array, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
    return nats, {"accuracy": jnp.mean(logits.argmax(-1) == batch["y"])}


# --- one model in three libraries -----------------------------------------------------------------


class NnxModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, rate: float = RATE) -> None:
        self.first = nnx.Linear(4, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.last = nnx.List([nnx.Linear(WIDTH, CLASSES, rngs=rngs)])

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last[0](self.drop(jax.nn.relu(self.norm(self.first(x)))))


class LinenModel(flax.linen.Module):
    rate: float = RATE

    @flax.linen.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = flax.linen.Dense(WIDTH)(x)
        x = flax.linen.BatchNorm(momentum=0.9, use_running_average=not train)(x)
        x = flax.linen.Dropout(self.rate, deterministic=not train)(jax.nn.relu(x))
        return flax.linen.Dense(CLASSES)(x)


class EquinoxModel(equinox.Module):
    first: equinox.nn.Linear
    norm: equinox.nn.BatchNorm
    drop: equinox.nn.Dropout
    last: list[equinox.nn.Linear]
    activation: Callable[[jax.Array], jax.Array]
    shift: float

    def __init__(self, key: jax.Array, rate: float = RATE) -> None:
        one, two = jax.random.split(key)
        self.first = equinox.nn.Linear(4, WIDTH, key=one)
        self.norm = equinox.nn.BatchNorm(WIDTH, "batch", momentum=0.9, mode="batch")
        self.drop = equinox.nn.Dropout(rate)
        self.last = [equinox.nn.Linear(WIDTH, CLASSES, key=two)]
        self.activation = lambda x: jax.nn.relu(x)  # noqa: PLW0108 - another one in each call
        self.shift = 1.0

    def __call__(self, x: jax.Array, state: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        hidden, state = self.norm(self.first(x - self.shift), state)
        return self.last[0](self.drop(self.activation(hidden), key=key)), state


def equinox_logits(model: Any, state: Any, x: Any, key: jax.Array) -> tuple[jax.Array, Any]:
    keys = jax.random.split(key, len(x))
    mapped = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
    return mapped(jnp.asarray(x), state, keys)


def equinox_loss(model: Any, state: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
    logits, state = equinox_logits(model, state, batch["x"], key)
    nats, metrics = result(logits, batch)
    return nats, (state, metrics)


@dataclass(frozen=True)
class Library:
    """One library's task of this model, and its way back from parameters to outputs."""

    task: Callable[[DataSpec, float], Task]
    """Data and dropout rate -> the task."""
    logits: Callable[[Mapping[str, Any], Any], jax.Array]
    """The parameters of a run, inputs -> the outputs of the restored model, in evaluation."""
    statistics: tuple[str, str]
    """The paths of the mean and the variance of the batches."""
    hidden: Callable[[Mapping[str, Any], Any], np.ndarray]
    """The leaves by path, inputs -> the inputs of the normalization."""
    paths: frozenset[str]
    """The paths of all parameters."""


def paths(first: str, norm: str, last: str, weight: str, scale: str) -> frozenset[str]:
    found = {f"{first}/{weight}", f"{first}/bias", f"{norm}/{scale}", f"{norm}/bias"}
    return frozenset(found | {f"{last}/{weight}", f"{last}/bias"})


def restored_by_linen(params: Mapping[str, Any], x: Any) -> jax.Array:
    output: Any = LinenModel().apply(archipelago.linen_variables(params), x, train=False)
    return output


def restored_by_equinox(params: Mapping[str, Any], x: Any) -> jax.Array:
    model, state = archipelago.equinox_model(EquinoxModel, params)
    return equinox_logits(model, state, x, jax.random.key(0))[0]


EXAMPLES: dict[str, Any] = {"examples": points, "classes": CLASSES}
LIBRARIES = {
    "nnx": Library(
        lambda data, rate: archipelago.nnx_task(
            lambda rngs: NnxModel(rngs, rate),
            lambda model, batch: result(model(batch["x"]), batch),
            data,
            **EXAMPLES,
        ),
        lambda params, x: archipelago.nnx_model(NnxModel, params)(x),
        ("norm/mean", "norm/var"),
        lambda leaves, x: x @ leaves["params/first/kernel"] + leaves["params/first/bias"],
        paths("first", "norm", "last/0", "kernel", "scale"),
    ),
    "linen": Library(
        lambda data, rate: archipelago.linen_task(
            LinenModel(rate),
            lambda apply, batch, train: result(apply(batch["x"], train=train), batch),
            data,
            **EXAMPLES,
        ),
        restored_by_linen,
        ("BatchNorm_0/mean", "BatchNorm_0/var"),
        lambda leaves, x: x @ leaves["params/Dense_0/kernel"] + leaves["params/Dense_0/bias"],
        paths("Dense_0", "BatchNorm_0", "Dense_1", "kernel", "scale"),
    ),
    "equinox": Library(
        lambda data, rate: archipelago.equinox_task(
            lambda key: EquinoxModel(key, rate), equinox_loss, data, **EXAMPLES
        ),
        restored_by_equinox,
        ("norm/batch_state_index/0", "norm/batch_state_index/1"),
        lambda leaves, x: (x - 1) @ leaves["params/first/weight"].T + leaves["params/first/bias"],
        paths("first", "norm", "last/0", "weight", "weight"),
    ),
}
SPEC: dict[str, Any] = {
    "learning_rate": 0.02,
    "warmup_steps": 1,
    "horizon_steps": 100,
    "weight_decay": 0.0,
}


@pytest.fixture(params=first_of(LIBRARIES))
def library_of_model(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[request.param]


def made(library: Library, rate: float = RATE) -> Task:
    data = data_spec("", lease_windows=16, heldout_percent=20.0)
    return in_one_tree(library.task(data, rate))


def trained(task: Task, steps: int, island: str = "a") -> tuple[dict[str, np.ndarray], list[float]]:
    """Return the leaves after some steps of the compiled inner step, and the losses."""
    inner, stream = Inner(task, optimizer_spec(**SPEC)), task.stream(16)
    for lease in range(steps):
        stream.add(Lease(lease))
    state, losses = inner.start(task.init(0)), list[float]()
    for step in range(steps):
        draw = Draws(0, Island(island), 0).at(step)
        state, measures = inner.step(state, stream.next(), step, draw)
        losses.append(float(measures.loss))
    return {path: np.asarray(leaf) for path, leaf in leaves_of(state.params).items()}, losses


def test_leaves_are_divided_into_parameters_and_state(library_of_model: Library) -> None:
    task = made(library_of_model)
    assert of_parameters(task, shapes_of(task)) + of_loss(task, shapes_of(task), batch(task)) == []
    leaves = leaves_of(task.shapes)
    assert {p[7:] for p in leaves if p.startswith("params/")} == library_of_model.paths
    state = {path for path in leaves if task.state(path)}
    assert state >= {f"state/{path}" for path in library_of_model.statistics}
    assert not any("rngs" in path or "drop" in path for path in leaves), "random state is no leaf"
    first, again, other = (leaves_of(task.init(seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(first[path], again[path]) for path in leaves)
    assert any(not np.array_equal(first[path], other[path]) for path in leaves)


def batch(task: Task) -> Any:
    return task.heldout(16)[0]


def test_model_learns_and_its_state_is_that_of_its_batches(library_of_model: Library) -> None:
    task = made(library_of_model)
    inner, stream = Inner(task, optimizer_spec(**SPEC)), task.stream(16)
    state, mean, variance = inner.start(task.init(0)), np.zeros(WIDTH), np.ones(WIDTH)
    for step in range(4):
        stream.add(Lease(step))
        rows, leaves = stream.next(), jax.tree.map(np.array, leaves_of(state.params))
        hidden = library_of_model.hidden(leaves, rows["x"])
        mean, variance = 0.9 * mean + 0.1 * hidden.mean(0), 0.9 * variance + 0.1 * hidden.var(0)
        state, _ = inner.step(state, rows, step)
    for path, wanted in zip(library_of_model.statistics, (mean, variance), strict=True):
        found = leaves_of(state.params)[f"state/{path}"]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    _, losses = trained(task, 60)
    assert losses[-1] < 0.7 < losses[0]


@pytest.mark.long
def test_restored_model_evaluates_as_the_run_does(library_of_model: Library) -> None:
    """The restored model has no dropout and uses the statistics, or the losses would differ."""
    task = made(library_of_model)
    leaves, _ = trained(task, 8)
    tree = jax.tree_util.tree_unflatten(jax.tree.structure(task.shapes), [*leaves.values()])
    rows = batch(task)
    loss, metrics = jax.jit(evaluation_loss(task))(tree, rows)
    wanted, wanted_metrics = result(library_of_model.logits(leaves, rows["x"]), rows)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-5)
    assert float(metrics["accuracy"]) == float(wanted_metrics["accuracy"])
    other = {path: leaf + 1 if path.startswith("state/") else leaf for path, leaf in leaves.items()}
    moved, _ = result(library_of_model.logits(other, rows["x"]), rows)
    assert abs(float(moved) - float(loss)) > 1e-3


def test_masks_differ_by_island_and_step_and_replay(library_of_model: Library) -> None:
    """The loss of a step depends on its key through the dropout alone."""
    task, plain = made(library_of_model), made(library_of_model, rate=0.0)
    rows = batch(task)
    keys = [Draws(seed, Island(name), 0).at(step) for seed, name, step in CHOICES]

    def losses(of: Task) -> list[float]:
        tree = of.init(0)
        loss = jax.jit(lambda words: of.loss(tree, rows, key=key_of(words))[0])
        return [float(loss(words)) for words in keys]

    drawn = losses(task)
    assert len({*drawn}) == len(drawn) == 8
    assert losses(task) == drawn
    assert len({*losses(plain)}) == 1, "only dropout uses the key"


CHOICES = [(seed, name, step) for seed in (0, 1) for name in ("a", "b") for step in (0, 1)]


def test_frozen_arrays_and_the_key_are_passed_on(library_of_model: Library) -> None:
    data = data_spec("", lease_windows=16, heldout_percent=20.0)
    seen: dict[str, Any] = {}

    def note(key: Any, frozen: Any) -> None:
        seen.update(key=key, frozen=frozen["shift"].shape)

    def nnx_loss(model: Any, batch: Any, key: Any, frozen: Any) -> Any:
        note(key, frozen)
        return result(model(batch["x"] + frozen["shift"]), batch)

    def linen_loss(apply: Any, batch: Any, train: bool, key: Any, frozen: Any) -> Any:
        note(key, frozen)
        return result(apply(batch["x"] + frozen["shift"], train=train), batch)

    def equinox_loss_too(model: Any, state: Any, batch: Any, key: Any, frozen: Any) -> Any:
        note(key, frozen)
        moved = {**batch, "x": batch["x"] + frozen["shift"]}
        return equinox_loss(model, state, moved, jax.random.key(0) if key is None else key)

    more: dict[str, Any] = {**EXAMPLES, "frozen": lambda: {"shift": np.ones(4, "f4")}}
    task = {
        "nnx": lambda: archipelago.nnx_task(NnxModel, nnx_loss, data, **more),
        "linen": lambda: archipelago.linen_task(LinenModel(), linen_loss, data, **more),
        "equinox": lambda: archipelago.equinox_task(EquinoxModel, equinox_loss_too, data, **more),
    }[next(name for name, each in LIBRARIES.items() if each is library_of_model)]()
    task = in_one_tree(task)
    assert of_loss(task, shapes_of(task), batch(task)) == []
    step = Inner(task, optimizer_spec(**SPEC))
    step.step(step.start(task.init(0)), batch(task), 0)
    assert seen["frozen"] == (4,)
    assert isinstance(seen["key"], jax.Array)


# --- models of text, and without state ------------------------------------------------------------


class NnxText(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(256, 8, rngs=rngs)
        self.out = nnx.Linear(8, 256, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.tokens(x))


class LinenText(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return flax.linen.Dense(256)(flax.linen.Embed(256, 8, name="tokens")(x))


class EquinoxText(equinox.Module):
    tokens: equinox.nn.Embedding
    out: equinox.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        self.tokens = equinox.nn.Embedding(256, 8, key=key)
        self.out = equinox.nn.Linear(8, 256, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.vmap(lambda each: self.out(self.tokens(each)))(x)


def of_text(call: Callable[[Any], Any], batch: Any) -> jax.Array:
    logits = call(batch[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


TEXTS: dict[str, tuple[Callable[[DataSpec], Task], str]] = {
    "nnx": (
        lambda data: archipelago.nnx_task(NnxText, of_text, data),
        "tokens/embedding",
    ),
    "linen": (
        lambda data: archipelago.linen_task(
            LinenText(), lambda apply, batch, train: of_text(apply, batch), data
        ),
        "tokens/embedding",
    ),
    "equinox": (
        lambda data: archipelago.equinox_task(
            EquinoxText, lambda model, batch: of_text(jax.vmap(model), batch), data
        ),
        "tokens/weight",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", TEXTS)
def test_model_of_text_without_state(tmp_path: Path, name: str) -> None:
    make, embedding = TEXTS[name]
    task = make(data_spec(str(sums(tmp_path)), window=16, lease_windows=16))
    assert in_one_tree(task) is task, "there is no state"
    shapes = shapes_of(task)
    assert of_parameters(task, shapes) + of_loss(task, shapes, task.heldout(4)[0]) == []
    assert [path for path in leaves_of(shapes) if task.embedding(path)] == [embedding]
    leaves, losses = trained(task, 8)
    assert losses[-1] < losses[0]
    restored = {
        "nnx": lambda: archipelago.nnx_model(NnxText, leaves),
        "linen": lambda: lambda x: LinenText().apply(archipelago.linen_variables(leaves), x),
        "equinox": lambda: jax.vmap(archipelago.equinox_model(EquinoxText, leaves)),
    }[name]()
    rows = task.heldout(4)[0]
    tree = jax.tree_util.tree_unflatten(jax.tree.structure(shapes), [*leaves.values()])
    loss, _ = evaluation_loss(task)(tree, rows)
    assert float(of_text(restored, rows)) == pytest.approx(float(loss), rel=1e-6)


# --- refusals -------------------------------------------------------------------------------------


class Caches(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = NnxText(rngs)
        self.seen = nnx.Cache(jnp.zeros(3))
        self.constant = np.arange(3)
        self.bare = jnp.zeros(3)


class Collects(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        self.variable("cache", "seen", jnp.zeros, 3)
        return LinenText()(x)


class Integers(EquinoxText):
    table: jax.Array

    def __init__(self, key: jax.Array) -> None:
        super().__init__(key)
        self.table = jnp.arange(3)


class HasKey(EquinoxText):
    index: equinox.nn.StateIndex

    def __init__(self, key: jax.Array) -> None:
        super().__init__(key)
        self.index = equinox.nn.StateIndex(jax.random.key(0))


def raising(key: Any) -> Any:
    raise RuntimeError("no such layer")


RAISED = f"{__file__}:{raising.__code__.co_firstlineno + 1}: "


def plain(model: Any, batch: Any) -> jax.Array:
    return of_text(model, batch)


@pytest.mark.parametrize(
    ("make", "messages"),
    [
        (
            lambda data: archipelago.nnx_task(Caches, plain, data),
            [
                "task nnx: seen is a variable of type Cache: only nnx.Param is trained",
                "task nnx: constant is an array: only nnx.Param",
                "task nnx: bare is an array: only nnx.Param",
            ],
        ),
        (
            lambda data: archipelago.linen_task(Collects(), lambda a, b, t: plain(a, b), data),
            ["task linen: cache/seen: the collection params is trained"],
        ),
        (
            lambda data: archipelago.equinox_task(Integers, plain, data),
            ["task equinox: table is int32[3]: only floating-point arrays are trained"],
        ),
        (
            lambda data: archipelago.equinox_task(HasKey, plain, data),
            ["task equinox: index is state of type key<fry>: only numbers and booleans"],
        ),
        (
            lambda data: archipelago.nnx_task(raising, plain, data),
            [f"{RAISED}task nnx: make_model raises RuntimeError: no such layer", "in raising)"],
        ),
        (
            lambda data: archipelago.equinox_task(raising, plain, data),
            [f"{RAISED}task equinox: make_model raises RuntimeError: no such layer", "in raising)"],
        ),
        (
            lambda data: archipelago.nnx_task(EquinoxText, plain, data),
            ["make_model"],
        ),
        (
            lambda data: archipelago.linen_task(LinenText(), lambda a, b, t: jnp.zeros(()), data),
            ["task linen: the loss raises ValueError: it never calls its first argument, apply"],
        ),
        (
            lambda data: archipelago.linen_task(LinenText, plain, data),
            ["is no module of Flax Linen"],
        ),
        (
            lambda data: archipelago.nnx_task(NnxText, plain, data, classes=3),
            ["task nnx: examples= and classes= go together"],
        ),
    ],
)
def test_models_that_cannot_be_trained_are_refused(
    make: Callable[[DataSpec], Task], messages: list[str]
) -> None:
    with pytest.raises(UserMistake) as refused:
        make(data_spec(""))
    for message in messages:
        assert message in str(refused.value)


def test_parameter_that_the_loss_assigns_is_refused(tmp_path: Path) -> None:
    def loss(model: Any, batch: Any) -> jax.Array:
        number = of_text(model, batch)
        model.out.bias.set_value(model.out.bias.get_value() + 1)
        return number

    task = archipelago.nnx_task(NnxText, loss, data_spec(str(sums(tmp_path)), window=16))
    (problem,) = of_loss(task, shapes_of(task), task.heldout(4)[0])
    assert "the loss assigns the parameter out/bias" in problem
    assert problem.startswith(f"{__file__}:{loss.__code__.co_firstlineno}: task nnx: loss raises ")


@pytest.mark.parametrize("make", [archipelago.nnx_task, archipelago.equinox_task])
def test_messages_begin_with_the_line_of_the_users_loss(make: Any, tmp_path: Path) -> None:
    def no_scalar(model: Any, batch: Any) -> jax.Array:
        return jnp.ones(3)

    model = NnxText if make is archipelago.nnx_task else EquinoxText
    task = make(model, no_scalar, data_spec(str(sums(tmp_path)), window=16))
    (problem,) = of_loss(task, shapes_of(task), task.heldout(4)[0])
    where = f"{__file__}:{no_scalar.__code__.co_firstlineno}"
    assert problem.startswith(f"{where}: task {task.name}: loss gives float32[3]"), problem


@pytest.mark.parametrize("make", [archipelago.nnx_task, archipelago.equinox_task])
def test_argument_that_no_call_passes_is_refused(make: Any) -> None:
    def draws_nothing(model: Any, batch: Any, dropout_key: Any = None) -> jax.Array:
        return of_text(model, batch)

    says = r"loss\(model, batch, dropout_key\): the parameter dropout_key is not known; call it key"
    with pytest.raises(UserMistake, match=says) as refused:
        make(NnxText if make is archipelago.nnx_task else EquinoxText, draws_nothing, data_spec(""))
    assert str(refused.value).startswith(f"{__file__}:{draws_nothing.__code__.co_firstlineno}: ")


def test_state_that_is_not_returned_is_refused() -> None:
    data = data_spec("", lease_windows=16, heldout_percent=20.0)

    def loss(model: Any, state: Any, batch: Any, key: jax.Array) -> Any:
        return equinox_loss(model, state, batch, key)[0], {}

    task = in_one_tree(archipelago.equinox_task(EquinoxModel, loss, data, **EXAMPLES))
    (problem,) = of_loss(task, shapes_of(task), batch(task))
    assert "a model with state needs (loss, (state, metrics))" in problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out/bias": None}, "out/bias missing"),
        ({"out/more": np.zeros(3)}, "out/more not in the model"),
        ({"out/bias": np.zeros(3)}, r"out/bias \(\[3\] instead of \[256\]\) of another shape"),
    ],
)
def test_parameters_of_another_model_are_refused(change: dict[str, Any], message: str) -> None:
    leaves = leaves_of(archipelago.nnx_task(NnxText, plain, data_spec("")).init(0))
    other = {path: leaf for path, leaf in {**leaves, **change}.items() if leaf is not None}
    with pytest.raises(UserMistake, match=message):
        archipelago.nnx_model(NnxText, other)


def test_missing_library_is_named_with_its_extra() -> None:
    with pytest.raises(UserMistake, match=r"needs Flax .*constraints.txt '\.\[flax\]'"):
        library("flax_is_not_here", "Flax", "flax")


def test_state_of_other_types_keeps_them() -> None:
    """A counter and a flag travel in float32, and a mean of several is rounded."""
    data = data_spec("", lease_windows=16, heldout_percent=20.0)
    task = in_one_tree(archipelago.equinox_task(EquinoxModel, equinox_loss, data, **EXAMPLES))
    leaves, _ = trained(task, 5)
    counter = leaves["state/norm/batch_counter"]
    assert (counter.dtype, float(counter)) == (np.float32, 5.0)
    leaves["state/norm/batch_counter"] = np.array(4.6, "f4")
    _, state = archipelago.equinox_model(EquinoxModel, leaves)
    assert int(jax.tree.leaves(state)[0]) == 5
    assert jax.tree.leaves(state)[0].dtype == jnp.int32


@pytest.mark.parametrize("separate", [False, True])
def test_module_of_linen_with_documents_or_conversations(tmp_path: Path, separate: bool) -> None:
    """A loss that reads the arrays by name could once not be initialized."""

    def loss(apply: Any, batch: Any, train: bool) -> jax.Array:
        del train
        names = {"tokens", "loss_mask"} | ({"segments"} if separate else set())
        if {*batch} == names:
            weight = batch["loss_mask"][:, 1:].astype(jnp.float32)
        else:
            assert {*batch} == {"tokens", "segments"}, "documents alone"
            weight = 1.0
        logits = apply(batch["tokens"][:, :-1])
        return (optax.softmax_cross_entropy_with_integer_labels(
            logits, batch["tokens"][:, 1:]) * weight).mean()  # fmt: skip

    spec = data_spec(str(sums(tmp_path)), window=16, lease_windows=16)
    task = archipelago.linen_task(LinenText(), loss, replace(spec, separate_documents=separate))
    assert {"tokens/embedding", "Dense_0/kernel", "Dense_0/bias"} == {*leaves_of(shapes_of(task))}


def test_error_of_a_linen_loss_is_that_of_the_plain_batch(tmp_path: Path) -> None:
    def loss(apply: Any, batch: Any, train: bool) -> jax.Array:
        del apply, train
        raise ValueError(f"a batch of type {type(batch).__name__}")

    spec = data_spec(str(sums(tmp_path)), window=16, lease_windows=16)
    with pytest.raises(UserMistake, match="a batch of type ndarray"):
        archipelago.linen_task(LinenText(), loss, spec)
