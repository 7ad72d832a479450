"""A task of `__main__` travels to another process, or is refused with the reason."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from archipelago.launching import draft_of
from archipelago.travelling_task import check_resumed, settings_of, with_optimizer, with_task
from cluster.config.load import parse
from cluster.config.training_tables import TaskConfig
from cluster.source import learner_sha256
from cluster.workers.assembly import optimizer_of, task_of
from coordinator.errors import UserMistake
from islands.optimizer import direction
from islands.pickled_task import load_pickled
from islands.sources import DataSpec
from islands.task import Task, language_model
from tests.given import data_spec
from tests.islands.test_pickled_task import make

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
from dataclasses import dataclass
from islands.model import ModelSpec
from islands.task import language_model
from archipelago.travelling_task import settings_of

@dataclass(frozen=True)
class Shape:
    width: int

SHAPE = Shape(16)

def spec():
    return ModelSpec(width=SHAPE.width, layers=1, heads=1, hidden=32)

def make(data, name="main"):
    return language_model(name, spec(), data)

print(json.dumps(settings_of(make)))
"""


def test_function_of_a_module_is_named_and_not_pickled() -> None:
    assert settings_of(make) == {"target": "tests.islands.test_pickled_task:make"}


def test_function_of_main_travels_with_all_that_it_uses() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, cwd=ROOT
    )
    settings = json.loads(done.stdout)
    assert settings["target"] == "__main__:make"
    loaded: Any = load_pickled(settings["pickled"], settings["target"])
    task = loaded(data_spec(), name="here")
    assert task.name == "here"
    assert task.shapes["embedding"].shape[-1] == 16


def test_function_in_a_function_travels() -> None:
    def inner(data: DataSpec) -> Task:
        return make(data, name="inner")

    settings = settings_of(inner)
    assert settings["target"].endswith("inner")
    assert load_pickled(settings["pickled"], "inner")(data_spec()).name == "inner"


def test_task_that_cannot_be_pickled_is_refused_with_the_variable() -> None:
    tools = {"lock": threading.Lock()}

    def helper() -> object:
        return tools

    def locked(data: DataSpec) -> Task:
        helper()
        return make(data)

    reason = r"variable helper\.tools \(dict\) cannot be pickled: cannot pickle '_thread\.lock'"
    with pytest.raises(UserMistake, match=reason) as refusal:
        settings_of(locked)
    assert "make that object inside the function" in str(refusal.value)
    where = f"{__file__}:{locked.__code__.co_firstlineno}"
    assert str(refusal.value).startswith(f"{where}: task tests.archipelago.test_travelling_task:")


def test_task_that_is_too_large_is_refused_with_its_largest_variable() -> None:
    import random

    noise = random.Random(0).randbytes(200_000)

    def large(data: DataSpec) -> Task:
        return make(data, name=str(len(noise)))

    with pytest.raises(UserMistake, match=r"at most 64 KiB are sent.*variable is noise, with 195"):
        settings_of(large)


@pytest.mark.parametrize("given", [7, Task, make(data_spec())])
def test_thing_that_is_no_function_is_refused(given: Any) -> None:
    with pytest.raises(UserMistake, match=r"task= is .*: give a function"):
        settings_of(given)


def test_task_replaces_the_preset_and_keeps_the_options() -> None:
    tables = {"task": {"preset": "byte-tiny", "options": {"width": 16}}, "run": {"steps": 3}}
    assert with_task(tables, make) == {
        "task": {"options": {"width": 16}, "target": "tests.islands.test_pickled_task:make"},
        "run": {"steps": 3},
    }
    assert tables["task"]["preset"] == "byte-tiny"


def test_task_keeps_all_keys_that_do_not_name_the_model() -> None:
    table = {
        "options": {"width": 16},
        "init_from": "/models/base.safetensors",
        "init_sha256": "0" * 64,
        "init_other_shapes": "skip",
        "compute_dtype": "bfloat16",
        "remat": "dots",
        "loop": "tests.loops:train",
    }
    own = {"target": "mine:make", "pickled": "a pickle"}
    name = {"target": "tests.islands.test_pickled_task:make"}
    assert with_task({"task": {**table, **own}}, make)["task"] == {**table, **name}
    assert {*table, *own, "preset"} == {*TaskConfig.model_fields}


def test_draft_of_a_file_a_config_and_tables_takes_the_task(tmp_path: Path) -> None:
    tables = {"task": {"preset": "byte-tiny"}, "islands": [{"group": "local"}]}
    path = tmp_path / "mine.toml"
    path.write_text(parse(tables).toml())
    for config in (path, parse(tables), tables):
        draft, origin = draft_of(config, {"run.steps": 3}, make)
        accepted = draft.accepted()
        assert accepted.task.target == "tests.islands.test_pickled_task:make"
        assert (accepted.task.preset, accepted.run.steps) == (None, 3)
        assert origin.stem == ("mine" if config == path else "run")


def test_resume_refuses_another_pickled_task(tmp_path: Path) -> None:
    def one(data: DataSpec) -> Task:
        return make(data, name="one")

    def other(data: DataSpec) -> Task:
        return language_model("other", _spec(), data)

    path, tables = tmp_path / "config.toml", {"islands": [{"group": "local"}]}
    given = {
        name: parse(with_task(tables, make)) for name, make in (("one", one), ("other", other))
    }
    path.write_text(given["one"].toml())
    check_resumed(given["one"], path)
    check_resumed(parse({"task": {"preset": "byte-tiny"}, **tables}), path)
    check_resumed(given["other"], tmp_path / "not-there.toml")
    with pytest.raises(UserMistake, match=re.escape(f"leave task= out, and give {path}")):
        check_resumed(given["other"], path)
    tuned = parse(with_optimizer(with_task(tables, one), lambda: optax.sgd(0.1)))
    with pytest.raises(UserMistake, match=r"pickled optimizer .* began with, none: leave optim"):
        check_resumed(tuned, path)


@pytest.mark.parametrize("as_function", [False, True])
def test_optimizer_object_travels(as_function: bool) -> None:
    def make_adam(rate: float = 0.5) -> optax.GradientTransformation:
        return optax.chain(optax.clip(1.0), optax.adam(rate))

    given = make_adam if as_function else make_adam(0.5)
    tables: dict[str, Any] = {
        "task": {"preset": "byte-tiny"},
        "optimizer": {"kind": "muon", "momentum": 0.9, "floor_fraction": 0.1},
        "islands": [{"group": "local"}],
    }
    config = parse(tomllib.loads(parse(with_optimizer(tables, given)).toml()))
    assert config.optimizer.schedule == "target"
    spec, params = optimizer_of(config), {"w": jnp.ones(3)}
    transformation = direction(spec, task_of(config))
    gradients = {"w": jnp.asarray([3.0, -0.5, 0.1])}
    found: Any
    wanted: Any
    found, _ = transformation.update(
        gradients, transformation.init(params), params, clock=jnp.int32(0)
    )
    own = make_adam()
    wanted, _ = own.update(gradients, own.init(params), params)
    np.testing.assert_array_equal(-np.asarray(found["w"]), np.asarray(wanted["w"]))
    other = parse(with_optimizer(tables, lambda: optax.sgd(0.1)))
    codes = {learner_sha256(each.learner_code, each.pickled_code) for each in (config, other)}
    assert len(codes) == 2


def test_importable_optimizer_is_named_and_a_rate_of_ours_is_kept() -> None:
    tables = {"optimizer": {"learning_rate": 0.1, "weight_decay": 0.2}}
    assert with_optimizer(tables, optax.lion)["optimizer"] == {
        "learning_rate": 0.1,
        "target": "optax._src.alias:lion",
    }


def test_thing_that_is_no_optimizer_is_refused() -> None:
    given: Any = "adam"
    with pytest.raises(UserMistake, match=r"optimizer= is a str: give an optax"):
        with_optimizer({}, given)


def test_optimizer_that_cannot_be_pickled_is_refused_with_the_variable() -> None:
    lock = threading.Lock()

    def locked() -> optax.GradientTransformation:
        return optax.sgd(0.1 if lock.locked() else 0.2)

    where = re.escape(f"{__file__}:{locked.__code__.co_firstlineno}: ")
    reason = rf"^{where}optimizer .*locked does not travel.*variable lock"
    with pytest.raises(UserMistake, match=reason):
        with_optimizer({}, locked)


def _spec() -> Any:
    from islands.model import ModelSpec

    return ModelSpec(width=16, layers=1, heads=1, hidden=32)
