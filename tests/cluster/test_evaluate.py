"""Which held-out windows a look is of, and which the summary: the one comparable with the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest
from ray.exceptions import RayActorError

from cluster.actors.evaluator.actor import EvaluatorActor
from cluster.config.load import parse
from cluster.workers.assembly import task_of
from cluster.workers.evaluator import Evaluator
from coordinator.errors import Unreachable
from coordinator.fragments import take
from coordinator.protocol import Fragment, Version

TASK = """
import dataclasses
import jax
import jax.numpy as jnp
import numpy as np
from islands.task import load_task

def squares(params):
    return sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(params))


def task(data, batches):
    found = load_task("byte-tiny", None, {}, data)
    return dataclasses.replace(
        found,
        loss=lambda params, batch: jnp.mean(batch.astype(float)) + 0 * squares(params),
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


# --- the public model, from the shards ------------------------------------------------------------

V3, V4 = Version(0, 3), Version(0, 4)
FLAT = np.arange(3, dtype=np.float32)


class Shards:
    """What they answer, in turn, the last for ever: a version, None, or an error."""

    def __init__(self, *answers: Version | RayActorError | None) -> None:
        self.answers, self.asked = [*answers], 0

    def __getitem__(self, name: str) -> Any:
        return SimpleNamespace(whole=SimpleNamespace(remote=self._whole))

    def _whole(self, fragments: list[Fragment]) -> list[tuple[Version, np.ndarray]] | None:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, RayActorError):
            raise answer
        return None if answer is None else [(answer, FLAT)]


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., EvaluatorActor]:
    monkeypatch.setattr("ray.get", lambda answers: answers)
    monkeypatch.setattr("cluster.actors.evaluator.actor.AGAIN_S", 0.0)

    def made(shards: Shards) -> EvaluatorActor:
        config = {"task": {"preset": "byte-tiny"}, "islands": [{}], "sync": {"fragments": 1}}
        made = EvaluatorActor(parse(config).model_dump_json(), "evaluate")
        made._actors = cast("Any", shards)
        judge = SimpleNamespace(loss=lambda flats: flats[0].sum(), sample=lambda flats: 7.0)
        made._made = cast("Any", judge)
        return made

    return made


def test_what_is_judged_at_the_end_is_fetched_once_also_from_a_shard_that_is_just_back(
    actor: Callable[..., EvaluatorActor],
) -> None:
    shards = Shards(RayActorError(), None, V3, V4)
    judge = actor(shards)
    assert (judge.loss([V3]), judge.sample([V3])) == (3.0, 7.0)
    assert shards.asked == 3
    assert judge.sample([V4]) == 7.0


def test_a_model_that_the_shards_do_not_have_is_not_waited_for(
    actor: Callable[..., EvaluatorActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unreachable, match="do not have the model"):
        actor(Shards(V3)).loss([V4])
    monkeypatch.setattr("cluster.actors.evaluator.actor.AWAY_S", 0.05)
    with pytest.raises(Unreachable, match="do not have the model"):
        actor(Shards(None)).loss([V3])
