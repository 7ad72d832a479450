"""The forms of a loss: a key that differs by island, life and step, and metrics beside the loss."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer
from safetensors.numpy import save_file

from cluster.allreduce.step import RingStep
from coordinator.codec import Wire
from coordinator.errors import UserMistake
from coordinator.protocol import Island
from islands.adopt import layout_of
from islands.frozen_file import frozen_file
from islands.gradients import gradients_of
from islands.inner import Inner
from islands.losses import evaluation_loss, frozen_of, training_loss
from islands.masked_loss import mean_nats
from islands.model import ModelSpec
from islands.precision import in_precision
from islands.randomness import Draws, key_of
from islands.state_tree import in_one_tree, named_arguments
from islands.task import Batch, Params, Task, language_model
from islands.trainable import of_loss, shapes_of
from tests.given import data_spec, optimizer_spec

BATCH = np.ones((2, 9), np.int32)
UNITS = 256


def draws(seed: int = 0, island: str = "a", incarnation: int = 0) -> Draws:
    return Draws(seed, Island(island), incarnation)


def dropout(params: Params, batch: Batch, key: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return a loss whose gradient shows which units were kept."""
    kept = jnp.ones(UNITS) if key is None else jax.random.bernoulli(key, 0.5, (UNITS,))
    return jnp.sum(params["w"] * kept) + 0 * jnp.sum(batch), {"kept": jnp.mean(kept)}


@pytest.fixture(scope="module")
def dropping() -> Task:
    task = language_model("small", ModelSpec(30, 16, 2, 2, 24), data_spec())
    return replace(task, init=lambda seed: {"w": jnp.zeros(UNITS)}, loss=dropout)


@pytest.fixture(scope="module")
def inner(dropping: Task) -> Inner:
    return Inner(dropping, optimizer_spec(weight_decay=0.0, clip_norm=0.0, warmup_steps=1))


def kept(inner: Inner, source: Draws, step: int) -> bytes:
    """Return which units a step of the compiled inner step kept."""
    state, _ = inner.step(inner.start({"w": np.zeros(UNITS, "f4")}), BATCH, 0, source.at(step))
    return (np.asarray(state.params["w"]) != 0).tobytes()


def test_masks_differ_between_seeds_islands_lives_and_steps_and_can_be_repeated(
    inner: Inner,
) -> None:
    choices = product((0, 7), ("a", "b"), (0, 1), (0, 1))
    masks = [kept(inner, draws(seed, name, life), step) for seed, name, life, step in choices]
    assert len(set(masks)) == len(masks) == 16
    for mask in masks:
        assert 0.3 < np.frombuffer(mask, bool).mean() < 0.7
    assert kept(inner, draws(7, "b", 1), 1) == masks[-1]


def test_a_key_can_be_computed_from_the_log_of_a_run(inner: Inner) -> None:
    words = draws(3, "local-1", 2).at(40)
    mask = jax.random.bernoulli(key_of(words), 0.5, (UNITS,))
    assert np.asarray(mask).tobytes() == kept(inner, draws(3, "local-1", 2), 40)


def test_seeds_of_any_size_give_a_key() -> None:
    assert draws(seed=2**40 + 5).at(0).tolist()[0] == 5
    assert draws(seed=-1).at(0).dtype == np.uint32


def test_evaluation_draws_nothing_and_has_metrics(dropping: Task) -> None:
    params = {"w": jnp.ones(UNITS)}
    loss, metrics = evaluation_loss(dropping)(params, BATCH)
    assert (float(loss), float(metrics["kept"])) == (UNITS, 1.0)


def test_own_loss_for_evaluation_is_used(dropping: Task) -> None:
    task = replace(dropping, eval_loss=lambda params, batch: jnp.float32(3.0))
    loss, metrics = evaluation_loss(task)({"w": jnp.ones(UNITS)}, BATCH)
    assert (float(loss), metrics) == (3.0, {})
    assert of_loss(task, shapes_of(task), BATCH) == []


def test_loss_without_a_key_is_called_without_one() -> None:
    task = language_model("small", ModelSpec(30, 16, 2, 2, 24), data_spec())
    assert named_arguments(task.loss) == frozenset()
    params = task.init(0)
    result = training_loss(task)(params, BATCH, {})
    assert float(result.loss) == float(task.loss(params, BATCH))
    assert (result.state, result.metrics) == (None, {})


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (dropout, True),
        (partial(dropout, key=None), True),
        (lambda params, batch: 0.0, False),
        (lambda params, batch, rng: 0.0, False),
        (min, False),
    ],
)
def test_a_key_is_an_argument_of_that_name(loss: Any, expected: bool) -> None:
    assert named_arguments(loss) == ({"key"} if expected else set())


def with_draws(params: Params, batch: Batch, *, dropout_key: Any = None) -> jax.Array:
    """Return a loss that would silently draw nothing."""
    return jnp.sum(params["w"] ** 2) + 0 * jnp.sum(batch)


def scaled(params: Params, batch: Batch, scale: float, dropout_rate: float = 0.1) -> jax.Array:
    return scale * (1 - dropout_rate) * jnp.sum(params["w"] ** 2) + 0 * jnp.sum(batch)


NAMES_IT = "call it key to get the random key of each step"


@pytest.mark.parametrize("has_precision", [False, True])
@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda params, batch, rng: 0.0, "loss(params, batch, rng): the parameter rng is not kn"),
        (lambda params, batch, rng: 0.0, NAMES_IT),
        (lambda params, batch, key, rng=None: 0.0, f"parameter rng is not known; {NAMES_IT}"),
        (lambda params, batch, seed=3: 0.0, f"parameter seed is not known; {NAMES_IT}"),
        (with_draws, "loss(params, batch, dropout_key): the parameter dropout_key is not known"),
        (scaled, "the parameter scale is not known; 2 arguments are passed by place"),
        (lambda params, batch, **rest: 0.0, "loss(params, batch, **rest): the parameter rest is"),
    ],
)
def test_argument_that_no_call_passes_is_refused(
    dropping: Task, loss: Any, says: str, *, has_precision: bool
) -> None:
    task = replace(dropping, loss=loss)
    shapes = shapes_of(task)
    computed = in_precision(task, "bfloat16" if has_precision else None, None)
    (problem,) = of_loss(computed, shapes, BATCH)
    where = f"{__file__}:{loss.__code__.co_firstlineno}: task small: loss("
    assert problem.startswith(where)
    assert says in problem
    judged = replace(dropping, eval_loss=loss)
    assert "task small: eval_loss(" in of_loss(judged, shapes, BATCH)[0]


def test_arguments_with_defaults_or_bound_ones_are_accepted(dropping: Task) -> None:
    bound = partial(with_draws, dropout_key=None)

    def starred(params: Params, batch: Batch, *rest: Any) -> jax.Array:
        return bound(params, batch)

    for loss in (partial(scaled, scale=2.0), bound, jax.jit(bound), starred):
        assert of_loss(replace(dropping, loss=loss), shapes_of(dropping), BATCH) == []


def test_argument_behind_the_state_is_refused(stateful: Task) -> None:
    def loss(params: Params, state: Any, batch: Batch, rng: Any = None) -> Any:
        return normalized(params, state, batch, rng)

    task = in_one_tree(replace(stateful, loss=loss, init=lambda seed: {"w": jnp.ones(9)}))
    (problem,) = of_loss(task, shapes_of(task), numbers(0))
    assert f"loss(params, state, batch, rng): the parameter rng is not known; {NAMES_IT}" in problem


# --- state ----------------------------------------------------------------------------------------


def normalized(params: Params, state: Any, batch: Batch, key: Any) -> tuple[jax.Array, Any]:
    """Return a loss of batches of numbers that are normalized, and their moving mean and variance.

    Evaluations, which have no key, use the state.
    """
    numbers = jnp.asarray(batch, jnp.float32)
    mean, variance = numbers.mean(0), numbers.var(0)
    if key is None:
        mean, variance = state["mean"], state["variance"]
    seen = (numbers - mean) / jnp.sqrt(variance + 1e-3)
    loss = jnp.mean((seen * params["w"] - 1) ** 2)
    moved = {
        "mean": 0.9 * state["mean"] + 0.1 * numbers.mean(0),
        "variance": 0.9 * state["variance"] + 0.1 * numbers.var(0),
    }
    return loss, (moved, {"mean": jnp.mean(mean)})


STATEFUL = {"mean": jnp.zeros(9), "variance": jnp.ones(9)}


@pytest.fixture(scope="module")
def stateful(dropping: Task) -> Task:
    return in_one_tree(
        replace(
            dropping,
            init=lambda seed: {"w": jnp.ones(9)},
            init_state=lambda seed: STATEFUL,
            loss=normalized,
        )
    )


def numbers(seed: int, rows: int = 8) -> Batch:
    return np.random.default_rng(seed).normal(5, 2, (rows, 9)).astype("f4")


def stepped(task: Task, batches: list[Batch], accumulate: int = 1) -> Params:
    spec = optimizer_spec(weight_decay=0.5, clip_norm=1.0, warmup_steps=1)
    step = Inner(task, spec, accumulate=accumulate)
    state = step.start(task.init(0))
    for clock, batch in enumerate(batches):
        state, _ = step.step(state, batch, clock)
    return jax.tree.map(np.asarray, state.params)


def test_state_is_what_the_loss_returns_and_has_no_decay(stateful: Task) -> None:
    assert of_loss(stateful, shapes_of(stateful), numbers(0)) == []
    batches = [numbers(seed) for seed in range(3)]
    params = stepped(stateful, batches)
    mean, variance = np.zeros(9), np.ones(9)
    for batch in batches:
        mean = 0.9 * mean + 0.1 * batch.mean(0)
        variance = 0.9 * variance + 0.1 * batch.var(0)
    np.testing.assert_allclose(params["state"]["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(params["state"]["variance"], variance, rtol=1e-5)
    assert not np.allclose(params["params"]["w"], 1)


def test_evaluation_uses_the_state(stateful: Task) -> None:
    tree = {"params": {"w": jnp.ones(9)}, "state": STATEFUL}
    _, metrics = evaluation_loss(stateful)(tree, numbers(0))
    assert float(metrics["mean"]) == 0.0


def test_task_without_state_is_unchanged(dropping: Task) -> None:
    assert in_one_tree(dropping) is dropping


def test_leaves_of_state_are_told_apart(stateful: Task) -> None:
    layout = layout_of(stateful, 2)
    paths = [leaf.path for leaf in layout.leaves if leaf.state]
    assert paths == ["state/mean", "state/variance"]
    assert layout.state_fragment == 1
    assert layout.sizes == (9, 18)


@pytest.mark.parametrize(
    ("after", "says"),
    [
        ({"mean": jnp.zeros(9)}, "variance (float32[9] before, none after)"),
        ({**STATEFUL, "more": jnp.zeros(2)}, "more (none before, float32[2] after)"),
        ({**STATEFUL, "mean": jnp.zeros(3)}, "mean (float32[9] before, float32[3] after)"),
        ({**STATEFUL, "mean": jnp.zeros(9, int)}, "mean (float32[9] before, int32[9] after)"),
    ],
)
def test_state_of_changing_form_is_refused(stateful: Task, after: Any, says: str) -> None:
    def loss(params: Params, state: Any, batch: Batch) -> tuple[jax.Array, Any]:
        return jnp.sum(params["w"]) + 0 * jnp.sum(batch), (after, {})

    task = in_one_tree(replace(stateful, loss=loss, init=lambda seed: {"w": jnp.ones(9)}))
    (problem,) = of_loss(task, shapes_of(task), numbers(0))
    assert says in problem


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("has_state", [False, True])
def test_step_returns_the_metrics_of_its_loss(
    stateful: Task, accumulate: int, *, has_state: bool
) -> None:
    """Also the mean over the parts of a batch."""

    def measured(params: Params, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        return jnp.sum(params["w"]) * jnp.mean(batch), {"largest": jnp.mean(jnp.max(batch, 1))}

    def with_both(params: Params, state: Any, batch: Batch) -> Any:
        loss, metrics = measured(params, batch)
        return loss, (jax.tree.map(lambda x: x + 1, state), metrics)

    task = replace(
        stateful,
        init=lambda seed: {"w": jnp.ones(UNITS)},
        init_state=stateful.init_state if has_state else None,
        loss=with_both if has_state else measured,
    )
    task = in_one_tree(task) if has_state else task
    inner = Inner(task, optimizer_spec(), accumulate=accumulate)
    batch = numbers(0)
    _, measures = inner.step(inner.start(task.init(0)), batch, 0)
    assert [*measures.metrics] == ["largest"]
    assert float(measures.metrics["largest"]) == pytest.approx(float(batch.max(1).mean()))


@pytest.mark.long
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_a_batch_add_up_to_the_whole(parts: int) -> None:
    task = language_model("small", ModelSpec(30, 16, 2, 2, 24), data_spec())
    batch = np.random.default_rng(0).integers(0, 30, (8, 9), np.int32)
    params = task.init(0)
    whole = gradients_of(task)(params, batch, {})
    summed = gradients_of(task, parts)(params, batch, {})
    np.testing.assert_allclose(summed.loss, whole.loss, rtol=1e-6)
    for one, other in zip(jax.tree.leaves(whole.grads), jax.tree.leaves(summed.grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("counted", [(5, 0, 3, 1), (0, 0, 0, 0)])
def test_parts_of_a_batch_weigh_as_the_tokens_that_the_loss_counts(
    dropping: Task, counted: tuple[int, ...]
) -> None:
    """A part without such a token has no weight, also if the loss divides by their number."""

    def loss(params: Params, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        errors = (params["w"][batch["tokens"][:, :-1]] - batch["tokens"][:, 1:]) ** 2
        mask = batch["loss_mask"][:, 1:]
        return mean_nats(errors, batch), {"share": jnp.sum(errors * mask) / jnp.sum(mask)}

    rng = np.random.default_rng(0)
    task = replace(dropping, init=lambda seed: {"w": jnp.ones(30)}, loss=loss)
    mask = np.zeros((8, 9), bool)
    mask[:, 0] = True  # no prediction
    for part, count in enumerate(counted):  # rows j and j + 4 are part j
        mask[part, 1 : 1 + count] = True
    batch = {"tokens": rng.integers(0, 30, (8, 9), np.int32), "loss_mask": mask}
    params = {"w": jnp.asarray(rng.normal(size=30), jnp.float32)}
    whole = gradients_of(task)(params, batch, {})
    summed = jax.jit(gradients_of(task, 4))(params, batch, {})
    np.testing.assert_allclose(summed.loss, whole.loss, rtol=1e-6)
    np.testing.assert_allclose(summed.grads["w"], whole.grads["w"], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(summed.metrics["share"], whole.metrics["share"], rtol=1e-6)


def test_each_part_of_a_batch_has_its_own_key_and_passes_its_state_on(stateful: Task) -> None:
    batch = numbers(0)
    state = stepped(stateful, [batch], accumulate=2)["state"]
    mean = np.zeros(9)
    for part in range(2):
        mean = 0.9 * mean + 0.1 * batch[part::2].mean(0)
    np.testing.assert_allclose(state["mean"], mean, rtol=1e-5)

    def loss(params: Params, batch: Batch, key: Any) -> jax.Array:
        return jnp.sum(params["w"] * jax.random.normal(key, (UNITS,))) + 0 * jnp.sum(batch)

    task = replace(stateful, init=lambda seed: {}, init_state=None, loss=loss)
    key, params = jax.random.key(3), {"w": jnp.ones(UNITS)}
    found = gradients_of(task, 2)(params, BATCH, {"key": key}).grads["w"]
    each = [jax.random.normal(jax.random.fold_in(key, j), (UNITS,)) for j in range(2)]
    np.testing.assert_allclose(found, (each[0] + each[1]) / 2, rtol=1e-5)


def test_members_of_a_ring_step_as_one_island_does(stateful: Task) -> None:
    """The mean of one member's gradient and state is its own."""
    spec = optimizer_spec(weight_decay=0.5, clip_norm=1.0, warmup_steps=1)
    step, clock = RingStep(stateful, spec, Wire.F32, 1), 0
    state = step.start(stateful.init(0), None)
    batches = [numbers(seed) for seed in range(3)]
    for clock, batch in enumerate(batches):
        loss, buckets = step.gradients(state, batch)
        buckets, _ = step.mean(loss, buckets, 1, leaving=False)
        state = step.update(state, buckets, clock)
    alone = stepped(stateful, batches)
    for one, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


# --- frozen arrays --------------------------------------------------------------------------------


are_arguments: list[bool] = []


def lora(params: Params, batch: Batch, frozen: Any) -> jax.Array:
    """Return a loss of a frozen matrix with a trained change of rank 1."""
    are_arguments.append(isinstance(frozen["base"]["w"], Tracer))
    weights = frozen["base"]["w"] + jnp.outer(params["a"], params["b"])
    return jnp.mean((weights - 1) ** 2) + 0 * jnp.sum(batch)


@pytest.fixture
def base(tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "base.safetensors"
    save_file({"base/w": np.zeros((4, 6), "f4"), "base/count": np.zeros(2, "i4")}, path)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def adapted(dropping: Task, base: tuple[Path, str]) -> Task:
    return replace(
        dropping,
        init=lambda seed: {"a": jnp.full(4, 0.1), "b": jnp.full(6, 0.1)},
        loss=lora,
        frozen=frozen_file(*base),
    )


def test_frozen_arrays_are_no_parameters_and_no_constants(adapted: Task) -> None:
    assert of_loss(adapted, shapes_of(adapted), BATCH) == []
    assert [leaf.path for leaf in layout_of(adapted, 1).leaves] == ["a", "b"]
    step = Inner(adapted, optimizer_spec(learning_rate=0.05, warmup_steps=1, weight_decay=0.0))
    are_arguments.clear()
    state, losses = step.start(adapted.init(0)), list[float]()
    for clock in range(60):
        state, measures = step.step(state, BATCH, clock)
        losses.append(float(measures.loss))
    assert losses[-1] < 0.1 < losses[0]
    assert set(are_arguments) == {True}, "of the compiled step, and no constant in it"
    loss, _ = evaluation_loss(adapted)(state.params, BATCH, frozen_of(adapted))
    assert float(loss) < losses[-1]


def test_another_base_is_refused_with_both_digests(adapted: Task, base: tuple[Path, str]) -> None:
    path, digest = base
    save_file({"base/w": np.ones((4, 6), "f4")}, path)
    with pytest.raises(UserMistake, match=rf"base.safetensors has the SHA-256 .* wants {digest}"):
        Inner(adapted, optimizer_spec()).compile(BATCH)
    (problem,) = of_loss(adapted, shapes_of(adapted), BATCH)
    assert "frozen raises UserMistake: frozen arrays" in problem
    path.unlink()
    with pytest.raises(UserMistake, match="cannot be read: No such file"):
        frozen_of(adapted)


def test_frozen_file_of_another_format_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "base.bin").write_bytes(b"no safetensors")
    digest = hashlib.sha256(b"no safetensors").hexdigest()
    with pytest.raises(UserMistake, match=r"base.bin is no safetensors file"):
        frozen_file("~/base.bin", digest)()


def test_frozen_arrays_and_loss_must_agree(adapted: Task) -> None:
    missing = replace(adapted, frozen=None)
    (problem,) = of_loss(missing, shapes_of(missing), BATCH)
    assert "loss has an argument `frozen`, and the task has no frozen arrays" in problem
    unused = replace(adapted, loss=lambda p, b: jnp.sum(p["a"]) + jnp.sum(p["b"]))
    (problem,) = of_loss(unused, shapes_of(unused), BATCH)
    assert "its loss has no argument `frozen`" in problem
