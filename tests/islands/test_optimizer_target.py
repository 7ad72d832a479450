"""An optimizer of the user's own: its steps are optax's, and the clock drives its schedule."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coordinator.errors import UserMistake
from coordinator.fragments import Flat
from coordinator.protocol import Fragment
from islands.adopt import layout_of
from islands.inner import Inner, InnerState
from islands.moment_search import LARGEST_TRIED, moment_parts, tried
from islands.moments import MomentsPort
from islands.optimizer import OptimizerSpec, direction
from islands.optimizer_checks import of_optimizer
from islands.optimizer_target import TargetState, clocked
from islands.task import Params, Task
from tests import own_optimizers
from tests.given import optimizer_spec
from tests.own_optimizers import HERE, scheduled_adam, tenth_at_ten

SHAPES = {"b": (3,), "v": (2, 2), "w": (4, 3)}
STEPS = 6


def init(seed: int) -> Params:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def loss(params: Params, batch: jax.Array) -> jax.Array:
    wanted = batch @ params["w"] + params["b"]
    return jnp.mean(jnp.square(wanted - 1)) + jnp.mean(jnp.square(params["v"] - batch[:1, :2]))


def nothing(*_: Any) -> Any:
    raise AssertionError("no test reads it")


TASK = Task(
    name="small", vocabulary=2, init=init, loss=loss, tokens=lambda batch: batch.shape[0],
    stream=nothing, heldout=nothing, stacked=lambda _: False, embedding=lambda _: False,
)  # fmt: skip
LAYOUT = layout_of(TASK, 1)
F0 = Fragment(0)


TABLE: dict[str, Any] = {"learning_rate": 1e-2, "warmup_steps": 2, "horizon_steps": 12}


def spec_of(target: str, **options: Any) -> OptimizerSpec:
    """Return a target with these options; `schedule` is none of them."""
    schedule = options.pop("schedule", "cosine")
    given = tuple(sorted(options.items()))
    return optimizer_spec(target=target, options=given, schedule=schedule, **TABLE)


def batches(number: int) -> list[np.ndarray]:
    return list(np.random.default_rng(7).normal(size=(number, 2, 4)).astype(np.float32))


def stepped(inner: Inner, state: InnerState, first: int, last: int) -> InnerState:
    for clock, batch in enumerate(batches(last)[first:], first):
        state, _ = inner.step(state, batch, clock)
    return state


def identical(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs)


def plain(optimizer: optax.GradientTransformation, steps: int) -> Params:
    """Return the parameters after steps of optax alone."""
    params = jax.tree.map(jnp.asarray, init(0))
    state = optimizer.init(params)

    @jax.jit
    def step(params: Params, state: Any, batch: jax.Array) -> tuple[Params, Any]:
        updates, state = optimizer.update(jax.grad(loss)(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    for batch in batches(steps):
        params, state = step(params, state, batch)
    return params


# --- steps ----------------------------------------------------------------------------------------

FULL: dict[str, tuple[Any, dict[str, Any]]] = {
    "optax:lion": (optax.lion, {"b1": 0.8}),
    "optax:adafactor": (optax.adafactor, {"momentum": 0.9}),
    "optax:sgd": (optax.sgd, {"momentum": 0.9}),
}


@pytest.mark.parametrize("target", FULL)
def test_steps_are_those_of_optax_at_the_rate_of_the_clock(target: str) -> None:
    make, options = FULL[target]
    spec = spec_of(target, learning_rate=1.0, **options)
    inner = Inner(TASK, spec)
    mine = stepped(inner, inner.start(init(0)), 0, STEPS).params
    theirs = plain(optax.chain(make(1.0, **options), optax.scale_by_schedule(spec.rate)), STEPS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), mine, theirs)


def test_an_object_is_a_target_too() -> None:
    named, built = (Inner(TASK, spec_of(x, **o)) for x, o in (
        (f"{HERE}:LION", {}), ("optax:lion", {"learning_rate": 1.0}),
    ))  # fmt: skip
    states = [stepped(each, each.start(init(0)), 0, 3) for each in (named, built)]
    assert identical(*states)


def test_target_equal_to_adamw_gives_the_same_bits() -> None:
    ours, own = Inner(TASK, optimizer_spec(**TABLE)), Inner(TASK, spec_of(f"{HERE}:adamw"))
    states = [stepped(each, each.start(init(0)), 0, STEPS).params for each in (ours, own)]
    assert identical(*states)


# --- the clock ------------------------------------------------------------------------------------


def test_schedule_of_a_target_follows_the_clock_and_its_bias_correction_does_not() -> None:
    """A learner that rejoins at clock 7 with fresh moments takes Adam's first step, at rate 7."""
    spec = spec_of(f"{HERE}:scheduled_adam", schedule="target", peak=1e-2, steps=10)
    inner, batch = Inner(TASK, spec), batches(1)[0]
    state, _ = inner.step(inner.start(init(0)), batch, 7)
    gradients = jax.grad(loss)(init(0), batch)
    for name, before in init(0).items():
        wanted = before - 1e-2 * (1 - 7 / 10) * np.sign(gradients[name])
        np.testing.assert_allclose(state.params[name], wanted, rtol=1e-4, atol=1e-6)
    kept: Any = state.opt_state
    assert isinstance(kept, TargetState)
    inner_state: Any = kept.inner
    adam, by_schedule = inner_state
    assert (int(adam.count), int(by_schedule.count), int(kept.steps)) == (1, 8, 1)


def test_own_schedule_gives_the_run_of_optax_if_clock_and_count_agree() -> None:
    inner = Inner(TASK, spec_of(f"{HERE}:scheduled_adam", schedule="target", peak=1e-2, steps=10))
    mine = stepped(inner, inner.start(init(0)), 0, STEPS).params
    theirs = plain(scheduled_adam(1e-2, 10), STEPS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), mine, theirs)


@pytest.mark.parametrize(
    ("optimizer", "counts"),
    [
        (optax.adamw(optax.constant_schedule(1.0)), ["2/count"]),
        (optax.adamw(1.0), []),
        (optax.adafactor(optax.constant_schedule(1.0)), ["2/count"]),
        (
            optax.inject_hyperparams(optax.adamw)(learning_rate=optax.constant_schedule(1.0)),
            ["count", "hyperparams_states/learning_rate/count"],
        ),
    ],
)
@pytest.mark.parametrize("params", [init(0), np.ones((4, 3), np.float32)])
def test_only_counts_without_moments_beside_them_follow_the_clock(
    optimizer: optax.GradientTransformation, counts: list[str], params: Params
) -> None:
    state = optimizer.init(params)
    named = jax.tree_util.tree_flatten_with_path(state)[0]
    found = [
        jax.tree_util.keystr(named[n][0], simple=True, separator="/")
        for n in clocked(state, params)
    ]
    assert found == counts


def test_a_schedule_of_the_users_gives_the_rate() -> None:
    spec = replace(optimizer_spec(), schedule=f"{HERE}:tenth_at_ten")
    assert [float(spec.rate(c)) for c in (0, 9, 10)] == [
        float(tenth_at_ten(jnp.int32(c))) for c in (0, 9, 10)
    ]
    inner, batch = Inner(TASK, spec), batches(1)[0]
    early, late = (inner.step(inner.start(init(0)), batch, c)[0].params for c in (9, 10))
    moved = [np.abs(np.asarray(each["w"]) - init(0)["w"]).max() for each in (early, late)]
    assert moved[1] == pytest.approx(moved[0] / 10, rel=1e-3)


# --- moments --------------------------------------------------------------------------------------

MOMENTS: dict[str, tuple[dict[str, float], list[tuple[float, bool]]]] = {
    "optax:lion": ({"learning_rate": 1.0, "b2": 0.98}, [(0.98, True)]),
    "optax:sgd": ({"learning_rate": 1.0, "momentum": 0.8}, [(0.8, True)]),
    "optax:adafactor": ({"learning_rate": 1.0, "momentum": 0.9}, [(0.9, True)]),
    "optax:adam": ({"learning_rate": 1.0, "b1": 0.85}, [(0.85, False)]),
    "optax:sm3": ({"learning_rate": 1.0}, []),
    "optax:adagrad": ({"learning_rate": 1.0}, []),
}


@pytest.mark.parametrize("target", MOMENTS)
def test_first_moments_are_found_by_structure(target: str) -> None:
    options, wanted = MOMENTS[target]
    parts = moment_parts(spec_of(target, **options), TASK)
    assert [(each.decay, each.alone) for each in parts] == wanted
    assert all(sorted(each.leaves) == sorted(SHAPES) for each in parts)


def test_moments_of_a_mixture_are_found_part_by_part() -> None:
    parts = moment_parts(spec_of(f"{HERE}:sgd_and_adam"), TASK)
    found = {(each.decay, each.alone): [*each.leaves] for each in parts}
    assert found == {(0.8, True): ["w"], (0.9, False): ["v"]}


def test_mean_replaces_the_moments_that_were_handed_in() -> None:
    """The trace of SGD has no count of its own; `TargetState.steps` counts its steps."""
    beta, seen, tau = 0.8, 4, 2
    spec = spec_of("optax:sgd", learning_rate=1.0, momentum=beta)
    inner, port = Inner(TASK, spec), MomentsPort(TASK, LAYOUT, spec)

    def trace(state: Any) -> Flat:
        trees = state.inner[0].trace
        flat = [np.asarray(trees[leaf.path]).ravel() for leaf in LAYOUT.leaves]
        return np.concatenate([flat[piece.leaf] for piece in LAYOUT.fragments[F0]])

    state = stepped(inner, inner.start(init(0)), 0, seen)
    taken, sent = port.take(state.opt_state, F0), trace(state.opt_state)
    np.testing.assert_allclose(taken.flat, sent / (1 - beta**seen), rtol=1e-5)
    mean = np.random.default_rng(1).normal(size=sent.size).astype(np.float32)
    state = stepped(inner, state, seen, seen + tau)
    now = trace(state.opt_state)
    after = trace(port.put(state.opt_state, F0, inner.place_flat(mean, mean.size), taken))
    wanted = now + beta**tau * ((1 - beta**seen) * mean - sent)
    np.testing.assert_allclose(after, wanted, rtol=1e-4, atol=1e-6)


def test_joining_learner_takes_the_mean_where_no_second_moment_divides_it() -> None:
    spec, clock = spec_of(f"{HERE}:sgd_and_adam"), 5
    inner, port = Inner(TASK, spec), MomentsPort(TASK, LAYOUT, spec)
    mean = np.random.default_rng(1).normal(size=LAYOUT.sizes[0]).astype(np.float32)
    fresh = inner.start(init(0)).opt_state
    joined: Any = inner.place_moments(port.joined(fresh, {F0: mean}, clock))
    pieces, offset, place = LAYOUT.fragments[F0], 0, dict[str, slice]()
    for piece in pieces:
        place[LAYOUT.leaves[piece.leaf].path] = slice(offset, offset + piece.size)
        offset += piece.size
    states = joined.inner.inner_states
    trace = states["sgd"].inner_state[0].trace["w"]
    wanted = (1 - 0.8**clock) * mean[place["w"]].reshape(SHAPES["w"])
    np.testing.assert_allclose(trace, wanted, rtol=1e-5)
    assert not np.any(states["adam"].inner_state[0].mu["v"])
    assert (int(joined.steps), int(joined.divided_steps)) == (clock, 0)
    state = InnerState(inner.place(init(0)), joined)
    assert np.isfinite(float(inner.step(state, batches(1)[0], clock)[1].loss))


@pytest.mark.parametrize("target", FULL)
def test_moments_of_a_donor_continue_its_run(target: str) -> None:
    inner = Inner(TASK, spec_of(target, learning_rate=1.0, **FULL[target][1]))
    state = stepped(inner, inner.start(init(0)), 0, 4)
    params, given = jax.tree.map(np.array, state.params), inner.moments(state)
    straight = stepped(inner, state, 4, STEPS)
    joined = stepped(inner, inner.start(params, inner.accept(given)), 4, STEPS)
    assert identical(straight, joined)


# --- refusals -------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, float], str]] = {
    "nowhere:lion": ({}, "no module 'nowhere': install it or set PYTHONPATH"),
    "optax:lionn": ({}, "module optax has no lionn; did you mean lion?"),
    "optax:lion": ({"b3": 0.5}, "b3 is no option of it; it has learning_rate, b1, b2, mu_dtype"),
    "optax:adam": ({"learning_rat": 0.5}, "learning_rat is no option of it, did you mean learning"),
    "optax:sgd": ({}, "missing a required argument: 'learning_rate'"),
    "optax:__version__": ({}, "is str, not an optax.GradientTransformation or a function that"),
    "builtins:dict": ({}, "returned dict, not an optax.GradientTransformation"),
    f"{HERE}:LION": ({"b1": 0.5}, "is a transformation itself and takes no options"),
    f"{HERE}:breaks": ({}, "raises RuntimeError: not today (in breaks)"),
    f"{HERE}:other_structure": ({}, "its updates have the structure {'w': *}, and the param"),
    f"{HERE}:other_shape": ({}, "its updates have float32[1] at b, and the parameters float32[3]"),
    f"{HERE}:other_type": ({}, "its updates have bfloat16[3] at b, and the parameters float32[3]"),
    f"{HERE}:growing_state": ({}, "its state after an update have float32[2] at count"),
    f"{HERE}:infinite_state": ({}, "its state before the first step is not finite: inner/count"),
    "optax:scale_by_lion": ({}, "its first update goes up the loss, along the gradient"),
    "optax:lbfgs": ({}, "missing 3 required keyword-only arguments: 'value', 'grad', and"),
    f"{HERE}:noisy": ({}, "0/rng_key of its state is key<fry>[], which cannot be given"),
    "optax.contrib:schedule_free_sgd": ({}, "its state holds a copy of the parameters (inner/z"),
}  # fmt: skip


@pytest.mark.parametrize("target", REFUSED)
def test_unsound_target_is_refused_with_one_message(target: str) -> None:
    options, why = REFUSED[target]
    (said,) = of_optimizer(spec_of(target, **options), TASK)
    where = re.escape(f"{own_optimizers.__file__}:")
    first = rf"{where}\d+: " if target.startswith(HERE) else ""
    assert re.match(first + re.escape(f'optimizer.target = "{target}"'), said), said
    assert why in said


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("LION", "LION = "),
        ("other_structure", "def other_structure("),
        ("growing_state", "def growing_state("),
        ("breaks", 'raise RuntimeError("not today")'),
    ],
)
def test_message_begins_with_the_line_of_the_target(target: str, text: str) -> None:
    options = {"b1": 0.5} if target == "LION" else {}
    (said,) = of_optimizer(spec_of(f"{HERE}:{target}", **options), TASK)
    assert said.startswith(f"{line_with(text)}: optimizer.target = ")


def line_with(text: str) -> str:
    """Return "file:line" of the first line of the targets that has this text."""
    lines = inspect.getsource(own_optimizers).splitlines()
    return f"{own_optimizers.__file__}:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def test_other_modes_of_a_run_allow_or_refuse_other_states() -> None:
    copies = spec_of("optax.contrib:schedule_free_sgd")
    assert of_optimizer(copies, TASK, merges=False) == []
    half = spec_of(f"{HERE}:half_state")
    assert of_optimizer(half, TASK) == []
    (said,) = of_optimizer(half, TASK, merges=False)
    assert "bfloat16[3], which the snapshots of this run.mode cannot hold" in said


def test_shared_moments_need_a_target_that_has_some() -> None:
    spec = spec_of("optax:sgd", learning_rate=1.0)
    assert of_optimizer(spec, TASK) == []
    (said,) = of_optimizer(spec, TASK, shares=True)
    assert said.startswith('sync.moments = "mean": the state of optax:sgd has no first moment')
    with pytest.raises(UserMistake, match="has no first moment"):
        MomentsPort(TASK, LAYOUT, spec)


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ("nowhere:rate", "no module 'nowhere'"),
        ("math:pi", "is float, not a function of the clock"),
        (f"{HERE}:python_if", "use jnp.where in place of `if`"),
        (f"{HERE}:two_numbers", "returns int32[2] for a clock: it must return one number"),
        (f"{HERE}:negative", "gives the rate -0.25 at clock 125: it must be 0 or more"),
    ],
)
def test_unsound_schedule_is_refused(schedule: str, why: str) -> None:
    (said,) = of_optimizer(optimizer_spec(schedule=schedule), TASK)
    first = ""
    if schedule.startswith(HERE):
        name = schedule.partition(":")[2]
        text = "return 1.0 if clock" if name == "python_if" else f"def {name}("
        first = f"{line_with(text)}: "
    assert said.startswith(f'{first}optimizer.schedule = "{schedule}"')
    assert why in said


def test_target_of_a_large_model_is_tried_on_shorter_axes() -> None:
    large = {"w": jax.ShapeDtypeStruct((LARGEST_TRIED, 2), jnp.float32)}
    assert tried(TASK.shapes) is TASK.shapes
    assert tried(large)["w"].shape == (8, 2)
    task = replace(TASK, init=lambda _: {"w": jnp.zeros((LARGEST_TRIED, 2))})
    (said,) = of_optimizer(spec_of("optax:scale_by_lion"), task)
    assert "goes up the loss" in said
    ((decay, alone),) = [
        (x.decay, x.alone) for x in moment_parts(spec_of("optax:lion", learning_rate=1.0), task)
    ]
    assert (decay, alone) == (0.99, True)


def test_built_in_optimizers_are_not_checked() -> None:
    assert of_optimizer(optimizer_spec("muon"), replace(TASK, init=nothing), shares=True) == []
    assert direction(optimizer_spec("muon"), TASK).init(init(0))
