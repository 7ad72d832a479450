"""The desk of the queue: waiting jobs ask here, and each look decides and carries out.

A job asks again every two seconds, so that one which is gone leaves the queue. Nothing is written
down: jobs, fleets and Ray's own store are asked again by the next process of the actor.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypedDict

from cluster.fleet.queue_message import RunMessage
from cluster.queue.facts import Applicant, ClusterFacts, QueueFacts, queue_facts
from cluster.queue.queue_status import QueueStatus, queue_status
from coordinator.cluster_queue import confirmed, decide
from coordinator.protocol import Island
from coordinator.queue_claims import UNDECIDED, Decision, QueueAnswer, QueueVerdict, Standing

log = logging.getLogger("archipelago.queue")
SILENT_S = 20.0
"""Seconds after which a job that does not ask has left the queue."""
EMPTY_LOOKS = 5
"""Looks in a row without a run after which the queue is idle."""
FIRST_LOOK = QueueAnswer(QueueVerdict.WAIT, "the queue has not looked at it yet")


class QueueCluster(Protocol):
    """The parts of a Ray cluster that the queue needs."""

    def facts(self) -> ClusterFacts:
        """Return the facts of one look."""
        ...

    def withhold(self, run: str, islands: Mapping[Island, str]) -> None:
        """Have the fleet of a run do without these islands."""
        ...


class AnswerMessage(TypedDict):
    """The answer to a waiting job, as plain data."""

    verdict: str
    why: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    applicant: Applicant
    heard_s: float


class QueueDesk:
    """The queue of one cluster; every method may be called from any thread, `look` from one."""

    def __init__(self, cluster: QueueCluster, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the desk. `clock` returns seconds."""
        self._cluster, self._clock = cluster, clock
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._decided = self._confirmed = UNDECIDED
        self._empty_looks = 0
        self._trouble = ""  # why the last look failed
        self._status = QueueStatus(runs=[], quotas=[], trouble="it has not looked yet")

    def ask(self, message: RunMessage, admitted: bool) -> AnswerMessage:
        """Return whether a run may start; the call is the heartbeat of its job.

        `admitted`: the job has that answer already, and is about to start the run. It may have it
        from an earlier process of this actor.
        """
        run = message["run"]
        with self._lock:
            known = self._waiting.get(run)
            admitted = admitted or (known is not None and known.applicant.admitted)
            answer = self._confirmed.answers.get(run, FIRST_LOOK)
            if admitted:
                answer = QueueAnswer(QueueVerdict.START, "it was admitted")
            elif self._trouble and answer.verdict is QueueVerdict.WAIT:
                why = f"the queue cannot look at the cluster: {self._trouble}"
                answer = QueueAnswer(QueueVerdict.WAIT, why)
            admitted = answer.verdict is QueueVerdict.START
            self._waiting[run] = _Waiting(Applicant(message, admitted), self._clock())
        return AnswerMessage(verdict=answer.verdict.value, why=answer.why)

    def leave(self, run: str) -> None:
        """Note that a job asks no more: its run has started, or it has given up."""
        with self._lock:
            self._waiting.pop(run, None)

    def show(self) -> QueueStatus:
        """Return the table of the queue as of its last look."""
        with self._lock:
            return self._status

    @property
    def is_idle(self) -> bool:
        """Whether the last looks found no run at all, and no job has asked since."""
        with self._lock:
            return self._empty_looks >= EMPTY_LOOKS and not self._waiting

    def look(self) -> None:
        """Look at the cluster once, decide, and have fleets do without the islands to take."""
        now_s = self._clock()
        facts = self._cluster.facts()
        with self._lock:
            self._waiting = {
                run: each for run, each in self._waiting.items() if now_s - each.heard_s <= SILENT_S
            }
            applicants = {run: each.applicant for run, each in self._waiting.items()}
        seen = queue_facts(facts, applicants)
        is_empty = not (seen.claims or facts.fleets)  # a fleet may not answer just now
        self._empty_looks = self._empty_looks + 1 if is_empty else 0
        decided = decide(seen.claims, seen.quotas, seen.total, seen.free)
        now = confirmed(self._decided, decided, seen.claims)
        self._decided = decided
        self._log(now)
        with self._lock:
            self._confirmed, self._trouble = now, ""
            self._status = queue_status(seen, now)
        self._withhold(seen, now)

    def trouble(self, why: str) -> None:
        """Note that a look has failed; jobs that wait get the reason until a look works."""
        with self._lock:
            self._trouble = why
            status = self._status.copy()
            status["trouble"] = why
            self._status = status

    def _log(self, now: Decision) -> None:
        """Log each answer that changed."""
        for run, answer in now.answers.items():
            if self._confirmed.answers.get(run) != answer:
                log.info("%s: %s, %s", run, answer.verdict, answer.why)

    def _withhold(self, seen: QueueFacts, now: Decision) -> None:
        for claim in seen.claims:
            if claim.standing is not Standing.LIVE:
                continue
            known = seen.messages[claim.run]["islands"]
            before = {Island(each["island"]) for each in known if each["withheld"] is not None}
            islands = now.withheld.get(claim.run, {})
            for island in islands.keys() - before:
                log.info("%s of %s is withheld: %s", island, claim.run, islands[island])
            for island in before - islands.keys():
                log.info("%s of %s may come back", island, claim.run)
            if before or islands:
                self._cluster.withhold(claim.run, islands)
