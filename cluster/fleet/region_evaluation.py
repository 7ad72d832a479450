"""The schedule of the regions' evaluators: one region at a time, from time to time and at the end.

An evaluation of a region never harms the training or the main evaluator: nothing here waits during
the run. If it raises, or its evaluator dies or hangs, its region has no new loss, and the next
evaluation follows at its time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from cluster.failures import Unjudged
from cluster.fleet.contribution_effects import has_room
from cluster.fleet.evaluation import (
    DEATHS,
    HUNG_S,
    PATIENCE,
    POLL_S,
    TROUBLE_AFTER,
    Evaluating,
    Pending,
)
from cluster.workers.evaluator_answers import ContributionEffect, Judged, RegionLoss
from coordinator.protocol import Version

log = logging.getLogger("archipelago.fleet")

SILENT_S = 120.0
"""The timeout in seconds of an evaluator that does not report its progress: it may have no node."""
SIGN_EVERY_S = 5.0
"""Seconds between two requests for its progress while it evaluates."""
SHARE = 4
"""A region is evaluated at most for one part in so many of the time.

An evaluation fetches the model over the wide area network, and computes beside the islands.
"""


class RegionFailure(NamedTuple):
    """An evaluation of a region without a result."""

    kind: Unjudged
    """Whether it raised, died or hung."""
    why: str = ""
    """The class of the exception and its code, or its text if that may leave; empty if unknown."""

    def __str__(self) -> str:
        """Return the kind, with the reason if it is known."""
        return f"{self.kind}: {self.why}" if self.why else str(self.kind)


class RegionSkipped(NamedTuple):
    """An evaluation that was left out: the syncer or a shard was coming back."""


@dataclass(slots=True)
class RegionState:
    """The state of one region."""

    due_s: float
    """The earliest time of its next evaluation."""
    last: RegionLoss | None = None
    """The newest loss; None: not known."""
    failures: int = 0
    """Failures since the newest loss."""
    why: str = ""
    """The last of them, in words."""
    measures: bool = False
    """Whether the next evaluation, or the one under way, measures the effect of a contribution."""


class RegionCall:
    """One evaluation of a region under way."""

    def __init__(
        self, evaluator: Evaluating, now_s: Callable[[], float], method: str, *arguments: object
    ) -> None:
        """Call the evaluator's method, without waiting for the answer."""
        self._evaluator, self._now_s = evaluator, now_s
        self.began_s = now_s()
        self._heard_s = self._moved_s = self._asked_s = self.began_s
        self._judged = Judged(0, 0.0)
        self._sign: Pending | None = None
        self._pending = self._asked(method, *arguments)

    def poll(self, wait_s: float) -> RegionLoss | RegionSkipped | RegionFailure | None:
        """Return the outcome; None while it is under way. An evaluator that hangs is restarted."""
        if isinstance(pending := self._pending, RegionFailure):
            return pending
        try:
            answer = pending(wait_s)
        except RayTaskError as error:  # Ray could not send the answer
            return RegionFailure(Unjudged.RAISED, type(error).__name__)
        except GetTimeoutError:
            if not self._hangs():
                return None
            self._evaluator.restart()
            return RegionFailure(Unjudged.HUNG)
        except RayActorError:
            return RegionFailure(Unjudged.DIED)
        except RayError as error:
            return RegionFailure(Unjudged.RAISED, type(error).__name__)
        if isinstance(answer, str):
            return RegionFailure(Unjudged.RAISED, answer)
        return RegionSkipped() if answer is None else RegionLoss(*answer)

    def _asked(self, method: str, *arguments: object) -> Pending | RegionFailure:
        try:
            return self._evaluator.ask(method, *arguments)
        except RayError as error:
            return RegionFailure(Unjudged.RAISED, type(error).__name__)

    def _hangs(self) -> bool:
        """Return whether it is silent, or has judged no batch for too long; this never waits."""
        now_s = self._now_s()
        if self._sign is None and now_s - self._asked_s >= SIGN_EVERY_S:
            asked, self._asked_s = self._asked("judged"), now_s
            self._sign = None if isinstance(asked, RegionFailure) else asked
        if self._sign is not None:
            self._hear(self._sign, now_s)
        if now_s - self._heard_s >= SILENT_S:
            return True
        return now_s - self._moved_s >= max(HUNG_S, PATIENCE * self._judged.longest_s)

    def _hear(self, sign: Pending, now_s: float) -> None:
        try:
            judged = Judged(*sign(0.0))
        except GetTimeoutError:
            return
        except RayError:
            self._sign = None
            return
        self._sign, self._heard_s = None, now_s
        if judged != self._judged:
            self._judged, self._moved_s = judged, now_s


class RegionEvaluations:
    """The evaluations of one run on the held-out text of each region; the keeper calls it."""

    def __init__(
        self,
        regions: Sequence[str],
        start: Callable[[str], Evaluating],
        every_s: float,
        now_s: Callable[[], float] = time.monotonic,
        measured: Callable[[ContributionEffect], None] | None = None,
    ) -> None:
        """Prepare the schedule.

        `start`: starts the evaluator of a region, or finds it. `measured`: called with each
        measured effect of a contribution; None: none is measured.
        """
        self._start, self._every_s, self._now_s = start, every_s, now_s
        self._measured = measured
        self._of = {region: RegionState(now_s() + every_s) for region in regions}
        self._evaluators: dict[str, Evaluating] = {}
        self._running: tuple[str, RegionCall] | None = None
        self._live: Collection[str | None] = ()

    @property
    def losses(self) -> dict[str, float | None]:
        """The newest loss of each region in nats per token; None: not known."""
        return {name: None if it.last is None else it.last.loss for name, it in self._of.items()}

    @property
    def steps(self) -> dict[str, int]:
        """The syncer step of the model of each known loss."""
        return {name: it.last.t for name, it in self._of.items() if it.last is not None}

    @property
    def trouble(self) -> str | None:
        """The live regions whose evaluations fail again and again, and why; None without any."""
        found = [
            f"the held-out loss of region {name} is not known, its evaluation {it.why} "
            f"({it.failures} times in a row)"
            for name, it in self._of.items()
            if it.failures >= TROUBLE_AFTER and name in self._live
        ]
        return "; ".join(found) or None

    def look(self, live: Collection[str | None]) -> None:
        """Check the evaluation under way, or begin the one that is due; this never waits.

        `live`: the regions with a live island. Others may have no node.
        """
        self._live = live
        if self._running is not None:
            region, call = self._running
            if (outcome := call.poll(0.0)) is not None:
                self._running = None
                self._note(region, call, outcome)
            return
        now_s = self._now_s()
        due = [name for name, it in self._of.items() if name in live and it.due_s <= now_s]
        if due:
            region = min(due, key=lambda name: self._of[name].due_s)
            self._running = region, self._begun(region, "sample", self._of[region].measures)

    def verdict(
        self, versions: Sequence[Version], enough: Callable[[], bool]
    ) -> tuple[dict[str, float | None], list[str]]:
        """Return each region's loss of the final model, and why one is missing.

        `versions`: of all fragments. It waits as long as batches are judged, and it is not
        `enough`.
        """
        losses, missing = dict[str, float | None](), list[str]()
        for region in self._of:
            found = self._insisted(region, versions, enough)
            losses[region] = found.loss if isinstance(found, RegionLoss) else None
            if isinstance(found, RegionLoss):
                self._of[region].failures = 0
            else:
                why = found or "was cut short"
                missing.append(f"there is no heldout_by_region of {region}: its evaluation {why}")
        return losses, missing

    def _insisted(
        self, region: str, versions: Sequence[Version], enough: Callable[[], bool]
    ) -> RegionLoss | RegionFailure | None:
        """Evaluate a region, and again if its process dies; return None once it is `enough`."""
        for _ in range(DEATHS):
            call, outcome = self._begun(region, "loss", [*versions]), None
            while outcome is None:
                if enough():
                    return None
                outcome = call.poll(POLL_S)
            if isinstance(outcome, RegionLoss):
                return outcome
            if isinstance(outcome, RegionFailure) and outcome.kind is not Unjudged.DIED:
                return outcome
        return RegionFailure(Unjudged.DIED)

    def _begun(self, region: str, method: str, *arguments: object) -> RegionCall:
        if region not in self._evaluators:
            self._evaluators[region] = self._start(region)
        return RegionCall(self._evaluators[region], self._now_s, method, *arguments)

    def _note(
        self, region: str, call: RegionCall, outcome: RegionLoss | RegionSkipped | RegionFailure
    ) -> None:
        """Note the outcome of an evaluation, and when the next one is due."""
        it, now_s = self._of[region], self._now_s()
        is_first = it.last is None and isinstance(outcome, RegionLoss)  # with start and compilation
        spare_s = 0.0 if is_first else (SHARE - 1) * (now_s - call.began_s)
        it.due_s = max(call.began_s + self._every_s, now_s + spare_s)
        measured, it.measures = it.measures, False
        match outcome:
            case RegionLoss():
                it.last, it.failures = outcome, 0
                if self._measured is not None:
                    took_s = now_s - call.began_s
                    it.measures = has_room(took_s, measured=measured, every_s=self._every_s)
                    if outcome.effect is not None:
                        self._measured(outcome.effect)
            case RegionFailure():
                it.failures, it.why = it.failures + 1, str(outcome)
                log.warning("the model was not evaluated in region %s: %s", region, outcome)
            case RegionSkipped():
                pass
