"""The schedule of the evaluator: evaluations from time to time, and of the final model.

A failed evaluation never harms the training. If it raises, or its evaluator dies or hangs, it has
no result, and the next one follows at its time. The summary notes it if it was the final one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from cluster.failures import Unjudged, in_short
from cluster.fleet.contribution_effects import has_room
from cluster.status import EvaluationStatus
from cluster.workers.evaluator_answers import ContributionEffect, Judged
from coordinator.protocol import Version

log = logging.getLogger("archipelago.fleet")
HUNG_S = 600.0
"""The timeout in seconds of an evaluator that judges no batch, unless its batches are longer."""
PATIENCE = 10
"""The timeout for an evaluator with long batches: this many times its longest batch."""
ANSWER_S = 10.0
"""The timeout in seconds of the request for the evaluator's progress."""
NOTE_S = 1.0
"""The timeout in seconds of the same request if its answer is only displayed."""
POLL_S = 1.0
"""Seconds that each look at a final evaluation waits for its result."""
TROUBLE_AFTER = 3
"""Failures in a row after which a loss that is not known is an alert."""
DEATHS = 3
"""Deaths in a row after which the final model is not evaluated any more."""


class FinalEvaluation(NamedTuple):
    """The evaluation of the final model: losses and metrics by their names in the summary."""

    figures: dict[str, Any]
    why: str | None
    """The reason why one of them is missing; None if none is."""


class EvaluationResult(NamedTuple):
    """The value that an evaluation has returned."""

    value: Any


Pending = Callable[[float], Any]
"""A pending answer; its argument is the longest wait in seconds.

Errors: the errors of Ray; `GetTimeoutError` if there is no answer by then.
"""


class Evaluating(Protocol):
    """The calls of the evaluator that a schedule makes."""

    def ask(self, method: str, *arguments: object) -> Pending:
        """Call a method, without waiting for the answer."""
        ...

    def restart(self) -> None:
        """Kill its process; Ray starts another one."""
        ...


class EvaluationSchedule:
    """The evaluations of one run, one at a time: from time to time, and of the final model."""

    def __init__(
        self,
        evaluator: Evaluating,
        every_s: float,
        now_s: Callable[[], float] = time.monotonic,
        measured: Callable[[ContributionEffect], None] | None = None,
    ) -> None:
        """Prepare the schedule.

        `measured`: called with each measured effect of a contribution; None: none is measured.
        """
        self._evaluator, self._every_s, self._now_s = evaluator, every_s, now_s
        self._measured, self._measures = measured, False
        self._pending: Pending | None = None
        self._looked_s = self._heard_s = now_s()
        self._judged = Judged(0, 0.0)
        self._known: EvaluationStatus | None = None
        self._failures, self._why = 0, ""  # since the last result, and why the newest has none
        self._began = -1  # batches judged before the final evaluation; -1: it has not begun

    @property
    def progress(self) -> EvaluationStatus | None:
        """The cost and progress of evaluations, as far as known."""
        return self._known

    @property
    def trouble(self) -> str | None:
        """The reason why the held-out loss is old; None unless evaluations fail in a row."""
        if self._failures < TROUBLE_AFTER:
            return None
        return (
            f"the held-out loss is old, its evaluation {self._why} ({self._failures} times in a "
            "row): read the log of the actor `evaluator`"
        )

    def look(self) -> Unjudged | None:
        """Check the evaluation under way, or begin one if it is time; return why one has failed."""
        if self._pending is not None:
            if (result := self._settled(self._pending, 0.0)) is None:
                return None
            self._pending = None
            return self._outcome(result)
        if self._now_s() - self._looked_s >= self._every_s:
            self._looked_s = self._now_s()
            self._note()
            self._pending = self._begun("judge", self._measures)
        return None

    def _outcome(self, result: EvaluationResult | Unjudged) -> Unjudged | None:
        """Pass an effect on, and decide whether the next evaluation measures one; as in `look`."""
        took_s, measured, self._measures = self._now_s() - self._looked_s, self._measures, False
        if isinstance(result, Unjudged):
            self._failures, self._why = self._failures + 1, str(result)
            return result
        self._failures = 0
        if self._measured is not None:
            self._measures = has_room(took_s, measured=measured, every_s=self._every_s)
            if isinstance(result.value, ContributionEffect):
                self._measured(result.value)
        return None

    def _note(self) -> None:
        """Ask the evaluator how far it is, and estimate from that how long it takes.

        An evaluator that does not answer at once is busy.
        """
        try:
            judged = Judged(*self._evaluator.ask("judged")(NOTE_S))
        except RayError:
            return
        if judged.batches < 2:
            return
        batch_s, wanted = judged.spent_s / (judged.batches - 1), judged.last
        if self._known is None:
            log.info("to judge the model takes %.0f s in all at the end", wanted * batch_s)
        done = 0 if self._began < 0 else max(0, min(wanted, judged.batches - self._began))
        self._known = EvaluationStatus(
            look_s=judged.look * batch_s,
            last_s=wanted * batch_s,
            done=done,
            wanted=0 if self._began < 0 else wanted,
        )

    def verdict(
        self, versions: Sequence[Version], enough: Callable[[], bool] = lambda: False
    ) -> FinalEvaluation:
        """Return losses and metrics of the final model; `versions`: of all fragments.

        It waits as long as batches are judged, and it is not `enough`.
        """
        self._pending = None
        self._note()
        self._began = self._batches()
        results = {"heldout_loss": self._insisted(enough, "loss", [*versions])}
        if isinstance(results["heldout_loss"], EvaluationResult):  # of those batches
            results["heldout_metrics"] = self._insisted(enough, "metrics")
        results |= {
            "sample_heldout_loss": self._insisted(enough, "sample", [*versions]),
            "initial_heldout_loss": self._insisted(enough, "initial_loss"),
        }
        missing = [
            f"there is no {figure}: its evaluation {result or 'was cut short'}"
            for figure, result in results.items()
            if not isinstance(result, EvaluationResult)
        ]
        figures = {
            k: result.value if isinstance(result, EvaluationResult) else None
            for k, result in results.items()
        }
        return FinalEvaluation(figures, "; ".join(missing) or None)

    def _batches(self) -> int:
        try:
            return Judged(*self._evaluator.ask("judged")(NOTE_S)).batches
        except RayError:
            return 0

    def _insisted(
        self, enough: Callable[[], bool], method: str, *arguments: object
    ) -> EvaluationResult | Unjudged | None:
        """Call the evaluator, and its next process again if one dies; None once it is `enough`."""
        for _ in range(DEATHS):
            if enough():
                return None
            pending, result = self._begun(method, *arguments), None
            while result is None:
                self._note()
                result = self._settled(pending, POLL_S)
                if result is None and enough():
                    return None
            if result is not Unjudged.DIED:
                return result
        return Unjudged.DIED

    def _begun(self, method: str, *arguments: object) -> Pending:
        self._heard_s = self._now_s()
        try:
            return self._evaluator.ask(method, *arguments)
        except RayError as error:  # the object store has no room for the arguments
            failed = error

        def fails(_: float) -> NoReturn:
            raise failed

        return fails

    def _settled(self, pending: Pending, wait_s: float) -> EvaluationResult | Unjudged | None:
        """Return the outcome of an evaluation; None while it is under way."""
        try:
            return EvaluationResult(pending(wait_s))
        except RayTaskError as error:
            log.error("the model could not be judged: %s", error)
            return Unjudged.RAISED
        except GetTimeoutError:
            if not self._hangs():
                return None
            log.error("the evaluator has judged nothing for %.0f s: restarted", self._patience_s)
            self._evaluator.restart()
            return Unjudged.HUNG
        except RayActorError as error:
            log.error("the evaluator has died: %s", in_short(str(error)))
            return Unjudged.DIED
        except RayError as error:
            log.error("the model could not be judged: %r", error)
            return Unjudged.RAISED

    @property
    def _patience_s(self) -> float:
        return max(HUNG_S, PATIENCE * self._judged.longest_s)

    def _hangs(self) -> bool:
        """Return whether no batch has been judged for too long; ask the evaluator only then."""
        if self._now_s() - self._heard_s < self._patience_s:
            return False
        judged = self._judged
        try:
            judged = Judged(*self._evaluator.ask("judged")(ANSWER_S))
        except RayError as error:
            log.warning("the evaluator does not report its progress: %s", type(error).__name__)
        if judged == self._judged:
            return True
        self._judged, self._heard_s = judged, self._now_s()
        return False
