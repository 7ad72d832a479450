"""Tests that `init`, which may take long, runs for the first model and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import jax
import pytest

from cluster.workers.assembly import LearnerParts, compiled, rehearse
from islands import model
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.inner import Inner
from islands.model import ModelSpec
from islands.task import PRESETS, Params, Task, load_task
from islands.trainable import of_parameters, shapes_of
from tests.cluster.test_runs import config
from tests.given import data_spec, optimizer_spec


def starts_of(task: Task) -> None:
    """Do what an island does before its first step, and what evaluator and loader look at."""
    mine = config("islands.0.encode=device", "islands.0.batch_size=2", "sync.fragments=2")
    parts = compiled(mine, mine.islands[0])
    rehearse(parts, 2)
    assert layout_of(task, 2).parameters == parts.layout.parameters
    assert not of_parameters(task, shapes_of(task))


@pytest.mark.long
def test_preset_runs_init_only_for_the_first_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(spec: ModelSpec, seed: int) -> Params:
        raise AssertionError("init was run")

    real, text = model.init, data_spec()
    monkeypatch.setattr(model, "init", fails)
    task = load_task("byte-tiny", None, {}, text)
    starts_of(task)
    drawn = real(PRESETS["byte-tiny"], 3)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), drawn) == jax.tree.map(
        lambda x: (x.shape, x.dtype), task.shapes
    )


@pytest.mark.long
def test_custom_init_runs_once() -> None:
    runs: list[int] = []
    preset = load_task("byte-tiny", None, {}, data_spec())

    def init(seed: int) -> Params:
        runs.append(seed)
        return preset.init(seed)

    mine = replace(preset, init=init)
    learner_of(mine)
    assert layout_of(mine, 4).parameters > 1000
    assert not of_parameters(mine, shapes_of(mine))
    assert len(runs) == 1
    assert not any(leaf.any() for leaf in jax.tree.leaves(mine.zeros()))


def learner_of(task: Task) -> None:
    layout = layout_of(task, 4)
    inner, port = Inner(task, optimizer_spec()), FragmentPort(layout, AdoptRule.CARRY)
    inner.compile(task.heldout(2)[0])
    port.compile(inner.place(task.zeros()))
    rehearse(LearnerParts(task, layout, inner, port, None), 2)
