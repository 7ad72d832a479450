"""The keys of an optimizer of the user's own: which fit together, and what a run keeps of them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from archipelago.cli.run_header import header
from archipelago.lab.training.compiled_parts import compiled_parts
from cluster.actors.restart import code_changed
from cluster.allreduce.ring_messages import TrainingPosition
from cluster.allreduce.saved_state import RingState, load_state, save_state
from cluster.allreduce.step import RingStep
from cluster.config.load import load, parse, read
from cluster.config.schema import Config
from cluster.launch.preflight import enter
from cluster.source import user_sha256
from cluster.storage import runs
from cluster.storage.folder import Folder
from cluster.workers.assembly import optimizer_of
from coordinator.codec import Wire
from coordinator.errors import UserMistake
from coordinator.fragments import Leaf, cut
from islands.inner import InnerState
from tests.given import LEAST, sums
from tests.islands.test_optimizer_target import TASK, batches, init

LION = {"target": "optax:lion", "options": {"learning_rate": 1.0}, "learning_rate": 3e-4}
OWN_RATES = {"target": "mine:adam", "schedule": "target"}


def config_of(optimizer: dict[str, Any], *overrides: str) -> Config:
    tables = {"task": {"preset": "byte-tiny"}, "islands": [{"count": 1}], "optimizer": optimizer}
    return parse(tables, origin="test", overrides=overrides)


def test_target_and_options_reach_the_learner(tmp_path: Path) -> None:
    config = config_of(LION, "optimizer.options.b1=0.8", "optimizer.schedule=wsd")
    spec = optimizer_of(config)
    assert (spec.target, spec.options) == ("optax:lion", (("b1", 0.8), ("learning_rate", 1.0)))
    assert (spec.schedule, spec.learning_rate, spec.horizon_steps) == ("wsd", 3e-4, 300)
    assert hash(spec) == hash(optimizer_of(config)), "compiled steps are kept by it"
    (tmp_path / "again.toml").write_text(config.toml())
    assert load(tmp_path / "again.toml") == config
    assert config.sha256 != config_of(LION).sha256


@pytest.mark.parametrize(
    ("optimizer", "where", "what"),
    [
        (LION | {"momentum": 0.95}, "momentum", "has no effect on optax:lion; leave it out, or"),
        (LION | {"kind": "adamw"}, "kind", "has no effect on optax:lion"),
        (LION | {"adamw_share": 0.5}, "adamw_share", "has no effect on optax:lion"),
        (LION | {"weight_decay": 0.1}, "weight_decay", "has no effect on optax:lion"),
        (LION | {"decay_fraction": 0.2}, "decay_fraction", 'is read only by schedule = "wsd"'),
        ({"target": "optax:lion"}, "learning_rate", "is missing: it multiplies the updates of"),
        ({"options": {"b1": 0.5}}, "options", "are those of a target, and there is none"),
        ({"schedule": "target"}, "schedule", 'is "target", and there is no optimizer.target'),
        (OWN_RATES | {"learning_rate": 1.0}, "learning_rate", "has no effect: mine:adam has its"),
        (OWN_RATES | {"warmup_steps": 20}, "warmup_steps", "has no effect: mine:adam has its own"),
        ({"schedule": "m:rate", "floor_fraction": 0.5}, "floor_fraction", "no effect: m:rate has"),
        ({"schedule": "linear"}, "schedule", 'must be "cosine", "wsd", "target" or look like'),
        ({"target": "lion"}, "target", "must look like module:attribute"),
        (LION | {"options": {"b1": [1]}}, "options.b1", "must be a number, text, true or false"),
    ],
)
def test_keys_that_do_not_fit_are_refused(optimizer: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(UserMistake) as refusal:
        config_of(optimizer)
    _, line = str(refusal.value).splitlines()
    assert line.strip().startswith(f"optimizer.{where}: ")
    assert what in line


@pytest.mark.parametrize(
    "optimizer", [LION, OWN_RATES, {"kind": "adamw", "schedule": "m:rate"}, {"schedule": "wsd"}]
)
def test_resolved_configuration_names_every_key_and_is_accepted(optimizer: dict[str, Any]) -> None:
    config = config_of(optimizer)
    assert parse(tomllib.loads(config.toml())) == config
    with pytest.raises(UserMistake, match=r"optimizer\.eps"):
        parse(tomllib.loads(config_of(LION).toml()), overrides=("optimizer.eps=1e-4",))


def test_floor_may_be_zero_for_all_islands_and_for_one_group() -> None:
    config = config_of({"floor_fraction": 0}, "islands.0.optimizer.floor_fraction=0.0")
    assert optimizer_of(config).floor_fraction == 0
    assert config.islands[0].optimizer.values == {"floor_fraction": 0.0}
    with pytest.raises(UserMistake, match=r"optimizer\.floor_fraction: must be at least 0"):
        config_of({"floor_fraction": -0.01})


def test_header_names_the_target_and_where_its_rate_comes_from() -> None:
    layout = cut([Leaf("w", (4, 4))], 1)

    def model(optimizer: dict[str, Any]) -> str:
        return header(config_of(optimizer), Path("runs/x"), layout)[1]

    assert "optax:lion at learning rate 0.0003" in model(LION)
    assert "mine:adam at the rates of target" in model(OWN_RATES)
    assert "muon at learning rate 0.016" in model({})


# --- summed gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["optax:adafactor", "tests.own_optimizers:scheduled_adam"])
def test_ring_continues_from_a_stored_state(tmp_path: Path, target: str) -> None:
    adafactor = {"target": target, "options": {"learning_rate": 1.0}, "learning_rate": 1e-2}
    adam = {"target": target, "options": {"peak": 1e-2, "steps": 9}, "schedule": "target"}
    spec = optimizer_of(config_of(adafactor if "adafactor" in target else adam))
    step = RingStep(TASK, spec, Wire.F32, 1)

    def after(state: InnerState, first: int, last: int) -> InnerState:
        for clock in range(first, last):
            _, buckets = step.gradients(state, batches(6)[clock])
            state = step.update(state, buckets, clock)
        return state

    state = after(step.start(init(0), None), 0, 4)
    params, moments = ([np.array(x) for x in jax.tree.leaves(each)] for each in (
        state.params, state.opt_state,
    ))  # fmt: skip
    save_state(depot := Folder(tmp_path), RingState(TrainingPosition(4), params, moments), 2)
    kept = load_state(depot)
    assert kept is not None
    structure = jax.tree.structure(TASK.shapes)
    back = step.start(jax.tree.unflatten(structure, list(kept.params)), kept.moments)
    pairs = zip(*(jax.tree.leaves(after(each, 4, 6)) for each in (state, back)), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


# --- the user's code ------------------------------------------------------------------------------


def test_digest_of_learners_covers_optimizer_and_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("my_rates", "my_steps"):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = config_of({"target": "my_steps:x", "schedule": "my_rates:x"})
    assert config.learner_code == {
        "optimizer.target": "my_steps:x", "optimizer.schedule": "my_rates:x",
    }  # fmt: skip

    def digest() -> str:
        user_sha256.cache_clear()
        return user_sha256(*config.learner_code.values())

    before = digest()
    assert before == digest()
    for name in ("my_rates", "my_steps"):
        (tmp_path / f"{name}.py").write_text("x = 2\n")
        after = digest()
        assert after != before
        why = code_changed(config.learner_code, before, after)
        assert why is not None
        assert "optimizer.target = 'my_steps:x', optimizer.schedule = 'my_rates:x'" in why
        before = after
    user_sha256.cache_clear()
    assert config_of({}).learner_code == {}


def test_run_keeps_its_target_when_it_is_resumed(tmp_path: Path) -> None:
    config = config_of(LION)
    (tmp_path / "config.toml").write_text(config.toml())
    assert runs.resume(config, tmp_path) == tmp_path
    with pytest.raises(UserMistake, match=r"optimizer\.target was optax:lion, is None"):
        runs.resume(config_of({}), tmp_path)
    other = config_of(LION, "optimizer.options.b1=0.5")
    with pytest.raises(UserMistake, match=r"optimizer\.options was .*, is .*'b1': 0\.5"):
        runs.resume(other, tmp_path)


# --- the preflight check --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ('target = "optax:scale_by_lion"\nlearning_rate = 1e-3', "goes up the loss"),
        ('target = "optax:nothing"\nlearning_rate = 1e-3', "module optax has no nothing"),
        ('schedule = "math:pi"', "is float, not a function of the clock"),
        (
            'target = "optax:sgd"\noptions = {learning_rate = 1.0}\nlearning_rate = 1e-3\n'
            '[sync]\nmoments = "mean"',
            "has no first moment",
        ),
    ],
)
def test_unsound_optimizer_is_refused_before_anything_starts(
    tmp_path: Path, more: str, why: str
) -> None:
    path = tmp_path / "run.toml"
    least = LEAST.replace("SOURCE", str(sums(tmp_path / "text")))
    path.write_text(f"[[islands]]\ncount = 1\n{least}[optimizer]\n{more}\n")
    with pytest.raises(UserMistake, match=why) as refusal:
        enter(read(path), path, tmp_path / "run", datetime.now(UTC))
    assert len(str(refusal.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


RATES = {
    "islands": [
        {"group": "near", "optimizer": {"learning_rate": 0.5, "warmup_steps": 3}},
        {"group": "far", "count": 2},
    ]
}


def test_group_has_its_own_rates() -> None:
    config = parse({"task": {"preset": "byte-tiny"}, **RATES})
    near, far = (optimizer_of(config, group) for group in config.islands)
    assert (near.learning_rate, near.warmup_steps) == (0.5, 3)
    assert far == optimizer_of(config)
    assert near == replace(far, learning_rate=0.5, warmup_steps=3)
    assert parse(tomllib.loads(config.toml())) == config


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (
            {"optimizer": {"schedule": "target", "target": "optax:lion"}},
            r"islands\.0\.optimizer\.(learning_rate|warmup_steps): has no effect",
        ),
        (
            {"run": {"mode": "data-parallel"}},
            r"islands\.0\.optimizer: has no effect with run\.mode",
        ),
    ],
)
def test_rates_of_a_group_without_effect_are_refused(tables: dict[str, Any], says: str) -> None:
    with pytest.raises(UserMistake, match=says):
        parse({"task": {"preset": "byte-tiny"}, **RATES, **tables})


def test_key_that_changes_the_state_of_the_optimizer_is_refused_for_a_group() -> None:
    islands = [{"group": "near", "optimizer": {"kind": "adamw"}}]
    with pytest.raises(UserMistake, match=r"islands\.0\.optimizer\.kind"):
        parse({"task": {"preset": "byte-tiny"}, "islands": islands})


@pytest.mark.long
def test_each_island_of_a_study_steps_at_the_rate_of_its_group() -> None:
    config = parse({"task": {"preset": "byte-tiny"}, **RATES})
    kit = compiled_parts(config)
    assert kit.inners["far"] is kit.inner
    batch = kit.task.heldout(2)[0]
    moved = dict[str, float]()
    for name, inner in kit.inners.items():
        before = kit.task.init(0)
        state, _ = inner.step(inner.start(before), batch, 0)
        pairs = zip(jax.tree.leaves(state.params), jax.tree.leaves(before), strict=True)
        moved[name] = max(float(jnp.abs(one - other).max()) for one, other in pairs)
    rates = {
        name: float(optimizer_of(config, config.group(name)).rate(0)) for name in ("near", "far")
    }
    assert moved["near"] / moved["far"] == pytest.approx(rates["near"] / rates["far"], rel=0.2)
