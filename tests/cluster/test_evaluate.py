"""Which held-out windows a look is of, and which the summary: the one comparable with the other."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from cluster.config.load import parse
from cluster.host.build import task_of
from cluster.host.evaluator import Evaluator
from coordinator.fragments import take
from coordinator.protocol import Fragment

TASK = """
import dataclasses
import jax.numpy as jnp
import numpy as np
from islands.task import load_task

def task(data, batches):
    found = load_task("byte-tiny", None, {}, data)
    return dataclasses.replace(
        found,
        loss=lambda params, batch: jnp.mean(batch.astype(float)) + 0 * jnp.sum(params["norm"]),
        heldout=lambda size: [np.full((size, 3), number) for number in range(batches)],
    )
"""


def evaluator(here: Path, monkeypatch: pytest.MonkeyPatch, batches: int) -> Evaluator:
    """Make an evaluator whose n-th held-out batch has a loss of n."""
    (here / "a_task_with_known_losses.py").write_text(TASK)
    monkeypatch.syspath_prepend(here)
    task = {"target": "a_task_with_known_losses:task", "options": {"batches": batches}}
    return Evaluator(parse({"task": task, "islands": [{}]}))


def test_a_look_is_spread_over_the_windows_that_the_summary_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches 0 to 31 are judged at the end, every eighth of them at a look; no more of them."""
    judge = evaluator(tmp_path, monkeypatch, 100)
    flats = judge.initial()
    assert judge.loss(flats) == sum(range(32)) / 32
    assert judge.sample(flats) == (0 + 8 + 16 + 24) / 4
    assert judge.initial_loss == judge.loss(flats)


@pytest.mark.parametrize(("batches", "sample"), [(1, 0.0), (3, 1.0), (4, 1.5), (7, 2.25)])
def test_where_little_is_held_out_a_look_is_of_all_or_of_four_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, sample: float
) -> None:
    judge = evaluator(tmp_path, monkeypatch, batches)
    assert judge.sample(judge.initial()) == sample
    assert judge.loss(judge.initial()) == (batches - 1) / 2


def test_it_says_how_far_it_is_and_how_long_its_batches_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = evaluator(tmp_path, monkeypatch, 100)
    assert judge.judged == (0, 0.0, 0.0, 4, 2 * 32 + 4)
    flats = judge.initial()
    judge.sample(flats)
    judge.loss(flats)
    judged = judge.judged
    assert judged.batches == 36
    assert 0 < judged.spent_s < 36 * judged.longest_s


def test_the_initial_model_is_the_same_leaf_by_leaf_and_as_a_whole() -> None:
    judge = Evaluator(parse({"task": {"preset": "byte-tiny"}, "islands": [{}]}))
    task = task_of(parse({"task": {"preset": "byte-tiny"}, "islands": [{}]}))
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(task.init(0))]
    for p, flat in enumerate(judge.initial()):
        np.testing.assert_array_equal(flat, take(judge.layout, Fragment(p), leaves))
