"""Tests of an evaluator that raises, dies, hangs or is slow: the fleet continues and reports it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    OutOfDiskError,
    RayTaskError,
)
from safetensors.numpy import load_file

from cluster.failures import Unjudged
from cluster.fleet.evaluation import (
    DEATHS,
    HUNG_S,
    PATIENCE,
    Evaluating,
    EvaluationSchedule,
    FinalEvaluation,
    Pending,
)
from cluster.fleet.outcome import SUMMARY_KEYS
from cluster.fleet.results import Results
from cluster.storage.folder import Folder
from cluster.storage.runs import SUMMARY
from cluster.workers.evaluator_answers import Judged
from coordinator.fragments import Leaf, cut
from coordinator.protocol import Version

EVERY_S = 10.0
VERSIONS = [Version(0, 7)]
PUBLIC = [(*VERSIONS, np.zeros(3, np.float32))]
MODEL = "model.safetensors"


def remotely(cause: BaseException) -> RayTaskError:
    told = RayTaskError("it", "Traceback: over there", cause, "ray::it", 1, "192.0.2.1")
    return told.as_instanceof_cause()


class Evaluator(Evaluating):
    """An evaluator in virtual time that gives an error, a value, or a value after a delay."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.does: dict[str, list[Any]] = {
            "loss": [2.5], "metrics": [{}], "sample": [2.4], "initial_loss": [5.5],
        }  # fmt: skip
        self.asked: list[str] = []
        self.restarts = 0
        self.judged: Callable[[], Judged] = lambda: Judged(0, 0.0)

    def ask(self, method: str, *arguments: object) -> Pending:
        if method == "judged":
            return lambda _: self.judged()
        self.asked.append(method)
        does = self.does.get(method, [None])
        answer = does.pop(0) if len(does) > 1 else does[0]
        began_s = self.now_s

        def pending(wait_s: float) -> Any:
            if isinstance(answer, BaseException):
                raise answer.with_traceback(None)
            if isinstance(answer, tuple) and self.now_s - began_s < answer[0]:
                self.now_s += wait_s
                raise GetTimeoutError
            return answer[1] if isinstance(answer, tuple) else answer

        return pending

    def restart(self) -> None:
        self.restarts += 1


@pytest.fixture
def evaluator() -> Evaluator:
    return Evaluator()


@pytest.fixture
def evaluation(evaluator: Evaluator) -> EvaluationSchedule:
    return EvaluationSchedule(evaluator, EVERY_S, lambda: evaluator.now_s)


def losses_of(verdict: FinalEvaluation) -> tuple[float | None, ...]:
    names = ("heldout_loss", "sample_heldout_loss", "initial_heldout_loss")
    return tuple(verdict.figures[name] for name in names)


FAILURES = [
    (remotely(RuntimeError("a kernel for GPUs only")), Unjudged.RAISED),
    (remotely(MemoryError()), Unjudged.RAISED),
    (remotely(GetTimeoutError()), Unjudged.RAISED),
    (OutOfDiskError("full"), Unjudged.RAISED),
    (ActorDiedError(), Unjudged.DIED),
    (ActorUnavailableError("restarting", None), Unjudged.DIED),
]


@pytest.mark.parametrize(("error", "why"), FAILURES)
def test_failed_look_is_reported_once_and_the_next_look_follows(
    evaluator: Evaluator, evaluation: EvaluationSchedule, error: Exception, why: Unjudged
) -> None:
    evaluator.does["judge"] = [error, None]
    told = [evaluation.look()]
    for _ in range(40):
        evaluator.now_s += 0.5
        told.append(evaluation.look())
    assert [each for each in told if each] == [why]
    assert evaluator.asked == ["judge", "judge"]


def test_failures_in_a_row_are_trouble_until_the_next_result(
    evaluator: Evaluator, evaluation: EvaluationSchedule
) -> None:
    error = remotely(RuntimeError("a kernel for GPUs only"))
    evaluator.does["judge"] = [error, error, None, *[error] * 3, None]
    troubles = list[str | None]()
    while len(evaluator.asked) < 8:
        evaluator.now_s += 0.5
        if evaluation.look() is not None:
            troubles.append(evaluation.trouble)
    assert troubles[:4] == [None] * 4
    assert "the held-out loss is old, its evaluation raised (3 times in a row)" in str(troubles[4])
    assert evaluation.trouble is None


def test_looks_run_one_at_a_time(evaluator: Evaluator, evaluation: EvaluationSchedule) -> None:
    evaluator.does["judge"] = [(45.0, None)]
    for _ in range(100):
        evaluator.now_s += 0.5
        assert evaluation.look() is None
    assert evaluator.asked == ["judge"]


def test_evaluator_that_hangs_is_restarted(
    evaluator: Evaluator, evaluation: EvaluationSchedule
) -> None:
    evaluator.does["judge"] = [(float("inf"), None), None]
    told: dict[float, Unjudged] = {}
    while evaluator.now_s < EVERY_S + HUNG_S + 2 * EVERY_S:
        evaluator.now_s += 0.5
        if (why := evaluation.look()) is not None:
            told[evaluator.now_s] = why
    assert told == {EVERY_S + HUNG_S: Unjudged.HUNG}
    assert evaluator.restarts == 1
    assert evaluator.asked.count("judge") > 1, "and the next look"


def test_evaluator_that_cannot_report_progress_counts_as_hung(
    evaluator: Evaluator, evaluation: EvaluationSchedule
) -> None:
    def deaf() -> NoReturn:
        raise GetTimeoutError

    evaluator.judged = deaf
    evaluator.does["loss"] = [(float("inf"), 0.0)]
    assert evaluation.verdict(VERSIONS).figures["heldout_loss"] is None
    assert evaluator.restarts == 1


def test_last_evaluation_is_waited_for_while_batches_are_judged(
    evaluator: Evaluator, evaluation: EvaluationSchedule
) -> None:
    """Wait 45 minutes at 5 minutes a batch, and 2 days once a batch is known to take an hour."""
    evaluator.does["loss"] = [(2700.0, 2.5)]
    evaluator.judged = lambda: Judged(int(evaluator.now_s // 300), 300.0)
    assert losses_of(evaluation.verdict(VERSIONS)) == (2.5, 2.4, 5.5)
    hour_s = 3600.0
    assert hour_s > HUNG_S
    evaluator.does["loss"] = [(48 * hour_s, 2.25)]
    evaluator.judged = lambda: Judged(1 + int(evaluator.now_s // hour_s), hour_s)
    assert losses_of(evaluation.verdict(VERSIONS)) == (2.25, 2.4, 5.5)
    assert evaluator.restarts == 0
    evaluator.does["loss"] = [(float("inf"), 0.0)]
    evaluator.judged = lambda: Judged(100, hour_s)
    began_s = evaluator.now_s
    assert evaluation.verdict(VERSIONS).figures["heldout_loss"] is None
    assert PATIENCE * hour_s <= evaluator.now_s - began_s <= 3 * PATIENCE * hour_s


@pytest.mark.parametrize(("error", "why"), FAILURES)
def test_failed_last_evaluation_leaves_the_rest_of_the_summary(
    evaluator: Evaluator, evaluation: EvaluationSchedule, error: Exception, why: Unjudged
) -> None:
    evaluator.does["loss"] = [error]
    verdict = evaluation.verdict(VERSIONS)
    assert losses_of(verdict) == (None, 2.4, 5.5)
    assert verdict.why == f"there is no heldout_loss: its evaluation {why}"
    evaluator.does["initial_loss"] = [error]
    words = (
        f"there is no {name}: its evaluation {why}"
        for name in ("heldout_loss", "initial_heldout_loss")
    )
    verdict = evaluation.verdict(VERSIONS)
    assert losses_of(verdict) == (None, 2.4, None)
    assert verdict.why == "; ".join(words)


def test_metrics_are_those_of_the_batches_of_the_loss(
    evaluator: Evaluator, evaluation: EvaluationSchedule
) -> None:
    evaluator.does["metrics"] = [{"accuracy": 0.5}]
    assert evaluation.verdict(VERSIONS).figures["heldout_metrics"] == {"accuracy": 0.5}
    assert evaluator.asked == ["loss", "metrics", "sample", "initial_loss"]
    evaluator.does["loss"] = [ActorDiedError()] * DEATHS
    assert "heldout_metrics" not in evaluation.verdict(VERSIONS).figures


def test_evaluator_that_dies_at_the_end_is_asked_again(
    evaluator: Evaluator, evaluation: EvaluationSchedule
) -> None:
    died = ActorUnavailableError("restarting", None)
    evaluator.does["loss"] = [died, died, 2.5]
    assert losses_of(evaluation.verdict(VERSIONS)) == (2.5, 2.4, 5.5)
    evaluator.asked.clear()
    evaluator.does["loss"] = [died]
    assert evaluation.verdict(VERSIONS).figures["heldout_loss"] is None
    assert evaluator.asked.count("loss") == DEATHS


def test_pending_look_is_not_waited_for_at_the_end(
    evaluator: Evaluator, evaluation: EvaluationSchedule
) -> None:
    evaluator.does["judge"] = [(float("inf"), None)]
    evaluator.now_s += EVERY_S
    assert evaluation.look() is None
    assert losses_of(evaluation.verdict(VERSIONS)) == (2.5, 2.4, 5.5)


# --- cost and progress ----------------------------------------------------------------------------


def test_cost_is_shown_in_advance_and_progress_at_the_end(
    evaluator: Evaluator, evaluation: EvaluationSchedule
) -> None:
    assert evaluation.progress is None
    evaluator.judged = lambda: Judged(1, 9.0, 0.0, 4, 68)
    evaluator.now_s = EVERY_S
    evaluation.look()
    assert evaluation.progress is None, "the first batch is compiled: the time of one is unknown"
    evaluation.look()
    evaluator.judged = lambda: Judged(32, 9.0, 62.0, 4, 68)
    evaluator.now_s = 2 * EVERY_S
    evaluation.look()
    assert evaluation.progress == {"look_s": 8.0, "last_s": 136.0, "done": 0, "wanted": 0}
    evaluator.does["loss"] = [(64.0, 2.5)]
    began_s, shown = evaluator.now_s, list[Any]()
    ask = evaluator.ask

    def seen(method: str, *arguments: object) -> Pending:
        shown.append(evaluation.progress)
        return ask(method, *arguments)

    evaluator.ask = seen  # type: ignore[method-assign]
    evaluator.judged = lambda: Judged(32 + int((evaluator.now_s - began_s) // 2), 9.0, 64.0, 4, 68)
    evaluation.verdict(VERSIONS)
    done = [each["done"] for each in shown if each and each["wanted"] == 68]
    assert done == sorted(done)
    assert {0, 10, 20, 30} <= {*done}


def test_evaluator_without_progress_reports_still_judges(
    evaluator: Evaluator, evaluation: EvaluationSchedule
) -> None:
    def deaf() -> NoReturn:
        raise GetTimeoutError

    evaluator.judged = deaf
    assert losses_of(evaluation.verdict(VERSIONS)) == (2.5, 2.4, 5.5)
    assert evaluation.progress is None


class Cut(Exception):
    """An exception that stands for the end of the process."""


def test_interrupted_last_evaluation_leaves_model_and_summary(
    evaluator: Evaluator, evaluation: EvaluationSchedule, tmp_path: Path
) -> None:
    evaluator.does["sample"] = [Cut()]
    layout = cut([Leaf("w", (3,))], 1)
    core: Any = SimpleNamespace(public=lambda: iter(PUBLIC), verdict=evaluation.verdict)
    measured: dict[str, object] = {
        key: 7 for key in SUMMARY_KEYS if "heldout" not in key and key != "wall_s"
    }

    def leave() -> None:
        Results(tmp_path, Folder(tmp_path), layout).leave(
            core, measured, check=lambda: None, began=0.0, asked=lambda: None
        )

    with pytest.raises(Cut):
        leave()
    assert load_file(tmp_path / MODEL).keys() == {"w"}
    summary = json.loads((tmp_path / SUMMARY).read_text())
    assert [*summary] == [*SUMMARY_KEYS]
    assert (summary["heldout_loss"], summary["merges"]) == (None, 7)
    assert len(summary["global_sha256"]) == 64
    evaluator.does["sample"], measured["paused_s"] = [2.4], 1e9
    leave()
    again = json.loads((tmp_path / SUMMARY).read_text())
    assert again["wall_s"] == pytest.approx(summary["wall_s"] - 1e9, abs=60.0)
    assert {**again, "wall_s": 0} == {
        **summary,
        "wall_s": 0,
        "heldout_loss": 2.5,
        "heldout_metrics": {},
        "sample_heldout_loss": 2.4,
        "initial_heldout_loss": 5.5,
    }


@pytest.mark.parametrize("before", [None, "SIGTERM"])
def test_ctrl_c_during_the_last_evaluation_leaves_model_and_summary(
    evaluator: Evaluator, evaluation: EvaluationSchedule, tmp_path: Path, before: str | None
) -> None:
    """A stop that was requested earlier does not cut this evaluation short."""
    evaluator.does["loss"] = [(60.0, 2.5)]

    def asked() -> str | None:
        return before or ("Ctrl-C" if evaluator.now_s > 3 else None)

    layout = cut([Leaf("w", (3,))], 1)
    core: Any = SimpleNamespace(public=lambda: iter(PUBLIC), verdict=evaluation.verdict)
    measured: dict[str, object] = {key: 7 for key in SUMMARY_KEYS if "loss" not in key}
    outcome = Results(tmp_path, Folder(tmp_path), layout).leave(
        core, measured, check=lambda: None, began=0.0, asked=asked
    )
    assert load_file(tmp_path / MODEL).keys() == {"w"}
    summary = json.loads((tmp_path / SUMMARY).read_text())
    assert summary["merges"] == 7
    assert outcome.asked == (before or "Ctrl-C")
    if before is None:
        assert evaluator.now_s < 10
        assert summary["heldout_loss"] is summary["sample_heldout_loss"] is None
        assert outcome.missing is not None
        assert outcome.missing.count("was cut short") == 3
    else:
        assert (summary["heldout_loss"], outcome.missing) == (2.5, None)
