"""The fleet's dealings with the evaluator: a look now and then, and the model of the end.

None of it is the training's affair. An evaluation that raises comes to nothing, one whose evaluator
dies or hangs as well, and then the next one has its turn. Of the last one the summary says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from cluster.failures import Unjudged, in_short
from cluster.status import EvaluationStatus
from cluster.workers.evaluator import Judged
from coordinator.protocol import Version

log = logging.getLogger("archipelago.fleet")
HUNG_S = 600.0
"""An evaluator that has judged no batch for so long hangs, unless its batches are longer ..."""
PATIENCE = 10
"""An evaluator with long batches is waited for as long as so many of its longest take."""
ANSWER_S = 10.0
"""It must say within this how far it is, whatever else it does."""
NOTE_S = 1.0
"""It is not waited for any longer if it is asked for what people see, and no more."""
POLL_S = 1.0
DEATHS = 3
"""After so many deaths in a row the last model is not judged any more."""


class FinalEvaluation(NamedTuple):
    """The evaluation of the final model: losses by their names in the summary."""

    losses: dict[str, float | None]
    why: str | None
    """Why one of the losses is missing; None if none is."""


class EvaluationResult(NamedTuple):
    """The value that an evaluation has returned."""

    value: Any


Pending = Callable[[float], Any]
"""An answer to come: waits so many seconds for it. Errors: Ray's; `GetTimeoutError` so far."""


class Evaluating(Protocol):
    """The evaluator, as it can be reached."""

    def ask(self, method: str, *arguments: object) -> Pending: ...

    def restart(self) -> None:
        """End its process; Ray begins it anew."""
        ...


class EvaluationSchedule:
    """The evaluations of one run, one at a time: now and then, and of the final model."""

    def __init__(
        self,
        evaluator: Evaluating,
        every_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._evaluator, self._every_s, self._now_s = evaluator, every_s, now_s
        self._pending: Pending | None = None
        self._looked_s = self._heard_s = now_s()
        self._judged = Judged(0, 0.0)
        self._known: EvaluationStatus | None = None
        self._began = -1  # batches judged before the last evaluation; -1: it has not begun

    @property
    def progress(self) -> EvaluationStatus | None:
        """What it takes, as far as that is known."""
        return self._known

    def look(self) -> Unjudged | None:
        """See to the judgement under way, or begin one if it is time; why one came to nothing."""
        if self._pending is not None:
            if (said := self._settled(self._pending, 0.0)) is None:
                return None
            self._pending = None
            return said if isinstance(said, Unjudged) else None
        if self._now_s() - self._looked_s >= self._every_s:
            self._looked_s = self._now_s()
            self._note()
            self._pending = self._begun("judge")
        return None

    def _note(self) -> None:
        """Ask how far it is, and reckon from that how long it takes. Whoever does not say so at
        once is busy."""
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
        """The figures of the end, of these versions of all fragments; waited for as long as batches
        are judged, and it is not `enough`."""
        self._pending = None
        self._note()
        self._began = self._batches()
        said = {
            "heldout_loss": self._insisted(enough, "loss", [*versions]),
            "sample_heldout_loss": self._insisted(enough, "sample", [*versions]),
            "initial_heldout_loss": self._insisted(enough, "initial_loss"),
        }
        missing = [
            f"there is no {figure}: its evaluation {what or 'was cut short'}"
            for figure, what in said.items()
            if not isinstance(what, EvaluationResult)
        ]
        losses = {
            k: what.value if isinstance(what, EvaluationResult) else None
            for k, what in said.items()
        }
        return FinalEvaluation(losses, "; ".join(missing) or None)

    def _batches(self) -> int:
        try:
            return Judged(*self._evaluator.ask("judged")(NOTE_S)).batches
        except RayError:
            return 0

    def _insisted(
        self, enough: Callable[[], bool], method: str, *arguments: object
    ) -> EvaluationResult | Unjudged | None:
        """Ask, and ask its next process again if the one that was asked dies; None once it is
        `enough`."""
        for _ in range(DEATHS):
            if enough():
                return None
            pending, said = self._begun(method, *arguments), None
            while said is None:
                self._note()
                said = self._settled(pending, POLL_S)
                if said is None and enough():
                    return None
            if said is not Unjudged.DIED:
                return said
        return Unjudged.DIED

    def _begun(self, method: str, *arguments: object) -> Pending:
        self._heard_s = self._now_s()
        try:
            return self._evaluator.ask(method, *arguments)
        except RayError as error:  # no room for the arguments
            failed = error

        def fails(_: float) -> NoReturn:
            raise failed

        return fails

    def _settled(self, pending: Pending, wait_s: float) -> EvaluationResult | Unjudged | None:
        """What came of it; None while it is under way."""
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
        """Has no batch been judged for too long? It is asked no sooner than that."""
        if self._now_s() - self._heard_s < self._patience_s:
            return False
        judged = self._judged
        try:
            judged = Judged(*self._evaluator.ask("judged")(ANSWER_S))
        except RayError as error:
            log.warning("the evaluator does not say how far it is: %s", type(error).__name__)
        if judged == self._judged:
            return True
        self._judged, self._heard_s = judged, self._now_s()
        return False
