"""Tests of the held-out windows that a look and the summary use, so that both are comparable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from cluster.actors.evaluator.actor import EvaluatorActor
from cluster.config.load import parse
from cluster.names import EVALUATOR
from cluster.workers.assembly import task_of
from cluster.workers.contribution_effect import SampledContribution
from cluster.workers.evaluator import Evaluator
from coordinator.errors import Unreachable, UserMistake
from coordinator.fragments import take
from coordinator.protocol import Fragment, Island, Version
from islands.masked_loss import mean_of_batches

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

    def loss(params, batch, key):
        number = jnp.mean(batch.astype(float)) + 0 * squares(params)
        return number, {"twice": 2 * number, "drawn": jnp.float32(key is not None)}

    return dataclasses.replace(
        found,
        loss=loss,
        heldout=lambda size: [np.full((size, 3), number) for number in range(batches)],
    )
"""


def evaluator(here: Path, monkeypatch: pytest.MonkeyPatch, batches: int) -> Evaluator:
    """Make an evaluator whose n-th held-out batch has a loss of n."""
    (here / "a_task_with_known_losses.py").write_text(TASK)
    monkeypatch.syspath_prepend(here)
    task = {"target": "a_task_with_known_losses:task", "options": {"batches": batches}}
    return Evaluator(parse({"task": task, "islands": [{}]}))


def test_look_samples_the_windows_of_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last evaluation judges batches 0 to 31, and a look judges every eighth of these."""
    judge = evaluator(tmp_path, monkeypatch, 100)
    flats = judge.initial()
    assert judge.loss(flats) == sum(range(32)) / 32
    assert judge.sample(flats) == (0 + 8 + 16 + 24) / 4
    assert judge.initial_loss == judge.loss(flats)


def test_metrics_of_the_loss_are_means_over_its_batches_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = evaluator(tmp_path, monkeypatch, 7)
    judge.loss(judge.initial())
    assert judge.metrics == {"twice": 6.0, "drawn": 0.0}


@pytest.mark.parametrize(("batches", "sample"), [(1, 0.0), (3, 1.0), (4, 1.5), (7, 2.25)])
def test_evaluation_uses_all_batches_or_a_sample_of_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, sample: float
) -> None:
    judge = evaluator(tmp_path, monkeypatch, batches)
    assert judge.sample(judge.initial()) == sample
    assert judge.loss(judge.initial()) == (batches - 1) / 2


MASKED = """
import dataclasses
import jax.numpy as jnp
import numpy as np
from a_task_with_known_losses import squares
from islands.masked_loss import mean_nats
from islands.task import load_task


def held_out(size, number, counted):
    mask = np.zeros((size, 3), bool)
    mask[:, 0] = True  # no prediction
    mask[:counted, 1] = True
    return {"tokens": np.full((size, 3), number), "loss_mask": mask}


def task(data, counts):
    found = load_task("byte-tiny", None, {}, data)

    def loss(params, batch):
        numbers, counted = batch["tokens"][:, 1:].astype(float), batch["loss_mask"][:, 1:]
        share = jnp.sum(numbers * counted) / jnp.sum(counted)
        return mean_nats(numbers, batch) + 0 * squares(params), {"number": share}

    batches = [*map(int, counts.split())]
    return dataclasses.replace(
        found,
        loss=loss,
        heldout=lambda size: [held_out(size, n, counted) for n, counted in enumerate(batches, 1)],
    )
"""


def masked(here: Path, monkeypatch: pytest.MonkeyPatch, counts: str) -> Evaluator:
    """Make an evaluator whose n-th held-out batch has a loss of n, and that many tokens count."""
    (here / "a_task_with_known_losses.py").write_text(TASK)
    (here / "a_task_with_known_masks.py").write_text(MASKED)
    monkeypatch.syspath_prepend(here)
    task = {"target": "a_task_with_known_masks:task", "options": {"counts": counts}}
    return Evaluator(parse({"task": task, "islands": [{}]}))


def test_batches_weigh_as_the_tokens_that_the_loss_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch has no answer: its loss of 0 and its metric of NaN have no weight."""
    judge = masked(tmp_path, monkeypatch, "0 1 0 3")
    flats = judge.initial()
    assert judge.loss(flats) == judge.sample(flats) == judge.initial_loss == (2 * 1 + 4 * 3) / 4
    assert judge.metrics == {"number": (2 * 1 + 4 * 3) / 4}


def test_sample_without_a_token_that_counts_is_of_all_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample has 4 of 32 batches; only the sixth of all has an answer."""
    judge = masked(tmp_path, monkeypatch, " ".join(["0"] * 5 + ["2"] + ["0"] * 26))
    flats = judge.initial()
    assert judge.sample(flats) == judge.loss(flats) == 6


def test_evaluation_without_a_token_that_counts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = masked(tmp_path, monkeypatch, "0 0")
    with pytest.raises(UserMistake, match=r"the 2 held-out batches .* no token .*heldout_percent"):
        judge.loss(judge.initial())


@pytest.mark.parametrize("counts", [[5, 5, 5], [None, None, None], [None, 3, 7]])
def test_batches_of_equal_counts_or_without_masks_weigh_equally(counts: list[int | None]) -> None:
    losses = [0.1, 0.7, 0.3]
    assert mean_of_batches(losses, counts) == sum(losses) / 3


def test_reports_progress_and_batch_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = evaluator(tmp_path, monkeypatch, 100)
    assert judge.judged == (0, 0.0, 0.0, 4, 2 * 32 + 4)
    flats = judge.initial()
    judge.sample(flats)
    judge.loss(flats)
    judged = judge.judged
    assert judged.batches == 36
    assert 0 < judged.spent_s < 36 * judged.longest_s


def test_initial_model_by_leaf_equals_the_whole_model() -> None:
    judge = Evaluator(parse({"task": {"preset": "byte-tiny"}, "islands": [{}]}))
    task = task_of(parse({"task": {"preset": "byte-tiny"}, "islands": [{}]}))
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(task.init(0))]
    for p, flat in enumerate(judge.initial()):
        np.testing.assert_array_equal(flat, take(judge.layout, Fragment(p), leaves))


# --- the public model, from the shards ------------------------------------------------------------

V3, V4 = Version(0, 3), Version(0, 4)
FLAT = np.arange(3, dtype=np.float32)


class Shards:
    """Shards that give these answers in turn, the last one forever.

    An answer is a version, `None`, or an error.
    """

    def __init__(self, *answers: Version | RayActorError | None) -> None:
        self.answers, self.asked = [*answers], 0
        self.contribution: SampledContribution | RayError | None = None
        self.evaluated: list[tuple[int, float]] = []

    def __getitem__(self, name: str) -> Any:
        calls = {
            "whole": self._whole,
            "contribution": self._contribution,
            "status": lambda: {"t": 9},
            "evaluated": lambda *loss: self.evaluated.append(loss),
        }
        return SimpleNamespace(
            **{method: SimpleNamespace(remote=call) for method, call in calls.items()}
        )

    def _contribution(self, judge: str) -> SampledContribution | None:
        assert judge == EVALUATOR
        if isinstance(self.contribution, RayError):
            raise self.contribution
        return self.contribution

    def _whole(self, fragments: list[Fragment]) -> list[tuple[Version, np.ndarray]] | None:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, RayActorError):
            raise answer
        return None if answer is None else [(answer, FLAT)]


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., EvaluatorActor]:
    monkeypatch.setattr("ray.get", lambda answers, timeout=None: answers)
    monkeypatch.setattr("cluster.actors.evaluator.public_model.AGAIN_S", 0.0)

    def made(shards: Shards, *, sums: bool = False) -> EvaluatorActor:
        config = {"task": {"preset": "byte-tiny"}, "islands": [{}], "sync": {"fragments": 1}}
        made = EvaluatorActor(parse(config).model_dump_json(), "evaluate")
        made._actors = cast("Any", shards)
        judge = SimpleNamespace(loss=lambda flats: flats[0].sum(), sample=lambda flats: 7.0)
        judge.sample = (lambda flats: float(flats[0].sum())) if sums else judge.sample
        made._made = cast("Any", judge)
        return made

    return made


def test_final_model_is_fetched_once_even_from_a_restarted_shard(
    actor: Callable[..., EvaluatorActor],
) -> None:
    shards = Shards(RayActorError(), None, V3, V4)
    judge = actor(shards)
    assert (judge.loss([V3]), judge.sample([V3])) == (3.0, 7.0)
    assert shards.asked == 3
    assert judge.sample([V4]) == 7.0


def test_missing_model_is_not_waited_for(
    actor: Callable[..., EvaluatorActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unreachable, match="do not have the model"):
        actor(Shards(V3)).loss([V4])
    monkeypatch.setattr("cluster.actors.evaluator.public_model.AWAY_S", 0.05)
    with pytest.raises(Unreachable, match="do not have the model"):
        actor(Shards(None)).loss([V3])


# --- the effect of a contribution -----------------------------------------------------------------

DELTA = np.array([4, 0, 0], np.float32)
SAMPLED = SampledContribution(Island("local-0"), Fragment(0), V3, 0.5, DELTA)


def test_evaluator_measures_a_contribution_only_if_it_is_asked_to(
    actor: Callable[..., EvaluatorActor],
) -> None:
    shards = Shards(V4)
    shards.contribution = SAMPLED
    judge = actor(shards, sums=True)
    assert judge.judge() is None
    assert judge.judge(True) == (Island("local-0"), 0, 2.0)
    assert shards.evaluated == [(9, 3.0), (9, 3.0)]


@pytest.mark.parametrize("answer", [None, RayActorError(), GetTimeoutError()])
def test_loss_is_measured_without_a_contribution_too(
    actor: Callable[..., EvaluatorActor], answer: RayError | None
) -> None:
    shards = Shards(V4)
    shards.contribution = answer
    assert actor(shards, sums=True).judge(True) is None
    assert shards.evaluated == [(9, 3.0)]
