"""The measurements of a run: decisions are the rules', measurements are kept here.

`saw` records every event with the states around it, `heard` the vitals of learners. `status` and
`summary` can be read at any time. Times are seconds of the syncer's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.failures import Failure
from cluster.status import RunStatus
from cluster.syncer import island_measures, merge_measures, run_time
from cluster.syncer.counts import COUNTS, Counts, fresh
from cluster.syncer.link_measures import LinkWatch
from cluster.syncer.payload_bytes import PayloadBytes
from cluster.syncer.report import status_of, summary_of, view_of
from cluster.syncer.run_time import RunTime
from cluster.transfers import Upload
from cluster.view import ProcessStarts, View
from coordinator.codec import Wire
from coordinator.errors import RunFailed
from coordinator.protocol import (
    Adopted,
    Arrived,
    Discard,
    Effect,
    Event,
    Fragment,
    Granted,
    Island,
    Life,
    Merge,
    Merged,
    Publish,
    Refused,
    Report,
    Resume,
    ShardLost,
    Unsound,
    Vitals,
    Void,
)
from coordinator.state import Phase, Rule, State
from islands.own_wire import AnyWire

WORDS = Report | Adopted
"""Messages that end a life only if they cannot be true."""


class Measures:
    """The measurements of one run; `islands` maps each configured island to its group."""

    def __init__(
        self,
        run: str,
        islands: Mapping[Island, str],
        sizes: Sequence[int],
        wire_down: AnyWire,
        *,
        now_s: float,
        wire_moments: Wire | None = None,
        overlap: int = 1,
        state_fragment: Fragment | None = None,
    ) -> None:
        """Start at zero.

        `wire_moments`: the encoding of shared moments, None if not shared. `overlap`: inner steps
        that a transfer may take. `state_fragment`: as in `Layout`; it is sent in float32.
        """
        self._run, self._sizes, self._links = run, sizes, LinkWatch(overlap)
        self._bytes = PayloadBytes(sizes, wire_down, wire_moments, state_fragment)
        self._counts, self._time = fresh(islands, now_s), RunTime()

    @property
    def counts(self) -> Counts:
        """All counters so far."""
        return self._counts

    def memory(self) -> Any:
        """Return the present counters as plain data that JSON can hold."""
        return COUNTS.dump_python(self._counts, mode="json")

    def remember(self, memory: Any) -> None:
        """Continue from these counters.

        Errors: `ValueError` if another version has written them.
        """
        self._counts = COUNTS.validate_python(memory)

    def saw(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], now_s: float
    ) -> None:
        """Record an event of the rules, and the effects that followed."""
        if isinstance(event, Report) and not any(isinstance(effect, Void) for effect in effects):
            self.reported(event, now_s)
        if isinstance(event, Resume):  # everything was read back from the storage
            self._counts.troubles.clear()
            island_measures.resumed(self._counts, now_s)
        else:
            island_measures.happened(self._counts, now_s)
        self._links.saw(self._counts.links, after, event, effects, now_s)
        if isinstance(event, Arrived):
            self._counts.up_bytes += event.contribution.bytes
            if not any(isinstance(effect, Discard) for effect in effects):
                self.delivered(event.contribution.id.life, now_s)
                key = event.contribution.id
                self._counts.watched(key.life.island).handed_in[key.fragment] = key.to_step
        if isinstance(event, Adopted):
            island_measures.adopted(self._counts, event)
        if isinstance(event, Unsound):
            merge_measures.undone(self._counts, before, event, after)
        if isinstance(event, Merged) and after.merges > before.merges:
            self._counts.jumps.pop(event.fragment, None)
            merge_measures.pointed(self._counts, before, event)
        if isinstance(event, ShardLost):
            self._counts.shards_lost += 1
        if isinstance(event, Resume):
            for fragment, version in zip(before.fragments, event.versions, strict=True):
                lost = fragment.version.number - version.number
                self._counts.merges_lost += max(0, lost)  # the stored version may be a later one
        for effect in effects:
            if isinstance(effect, Granted):
                island_measures.granted(self._counts, effect.life)
            if isinstance(effect, Void) and effect.distrusted:
                self._counts.distrusted += isinstance(event, WORDS)
            if isinstance(effect, Refused):
                self.refused(effect.island, effect.why, for_good=effect.retry_s is None)
            if isinstance(effect, Discard):
                self._counts.refusals[effect.fate] += 1
            if isinstance(effect, Merge):
                fragment = before.fragments[effect.fragment]
                merge_measures.closed(self._counts, fragment, effect, now_s)
            if isinstance(effect, Publish):
                bytes_ = self._bytes.published(before.fragments[effect.fragment], effect)
                self._links.published(effect, bytes_, now_s)
                self._counts.down_bytes += bytes_ * len(effect.to)
        if after.merges > before.merges:
            merge_measures.merged(self._counts, before, after, now_s)
        if before.phase is Phase.RUNNING and after.phase is not Phase.RUNNING:
            self._counts.stopping_s = now_s
        if before.phase is not after.phase and after.phase is Phase.FINISHED:
            self._counts.ended_s = now_s
            run_time.ended(self._counts, now_s)

    def received(self, state: State, uploads: Sequence[Upload], now_s: float) -> None:
        """Count the transfers of contributions that a shard has received."""
        self._links.uploads(self._counts.links, state, uploads, now_s)

    def heard(self, life: Life, vitals: Vitals, now_s: float = math.nan) -> None:
        """Record the vitals of a report that was not void."""
        island_measures.heard(self._counts, life, vitals, now_s)

    def reported(self, report: Report, now_s: float) -> None:
        """Count a report that was not void: its learner has advanced."""
        island_measures.reported(self._counts, report, now_s)

    def delivered(self, life: Life, now_s: float) -> None:
        """Count a contribution of this life that was admitted."""
        island_measures.delivered(self._counts, life, now_s)

    def began(self, now_s: float) -> None:
        """Note when the run began; each generation repeats this, and the earliest time counts."""
        if now_s < self._counts.began_s:
            self._counts.began_s = self._counts.held_since_s = now_s
            run_time.began(self._counts, now_s)

    def fault(self, island: Island, now_s: float) -> None:
        """Count a fault that was injected on purpose."""
        self._counts.faults += 1
        if (watched := self._counts.islands.get(island)) is not None:
            watched.fault_s, watched.fault_life = now_s, watched.life

    def refused(self, island: Island, why: str, *, for_good: bool = True) -> None:
        """Note that an island was not admitted, and why."""
        watched = self._counts.watched(island)
        watched.refused, watched.rejected = why, for_good

    def failed(self, life: Life | None, failure: Failure) -> None:
        """Count a failure by its reason; `life` is None if it belongs to no island."""
        self._counts.failures[failure.reason] += 1
        if life is not None:
            self._counts.watched(life.island).failed = failure.why

    def unjudged(self, why: str) -> None:
        """Count an evaluation that had no result, by its reason."""
        self._counts.unjudged[why] += 1

    def held(self, islands: Mapping[Island, str], now_s: float) -> None:
        """Note which islands hold devices from now on, each with its group."""
        run_time.held(self._counts, islands, now_s)

    def owned(self, owner: int, now_s: float) -> None:
        """Note the owner that the run has from `now_s` on: it holds no devices yet.

        `now_s` is the time of the last event before, so no hours count in which nothing ran.
        """
        island_measures.owned(self._counts, owner, now_s)

    def looked(self, processes: ProcessStarts | None, now_s: float) -> None:
        """Note the starts of islands' processes that the fleet has seen."""
        self._time.looked(self._counts, processes, now_s)

    def timed(self, status: RunStatus, now_s: float) -> RunStatus:
        """Return a status with the time of the islands in it."""
        return self._time.with_time(self._counts, status, now_s)

    def trouble(self, subject: str, why: str | None) -> None:
        """Note why something of the run is not durable at present; None: it is durable again."""
        if why is not None:
            self._counts.troubles[subject] = why
        else:
            self._counts.troubles.pop(subject, None)

    def came_back(self, memory: Any, damage: str | None) -> None:
        """Continue from stored counters, if there are any, and note the damage."""
        if memory is not None:
            self.remember(memory)
        self._counts.troubles.clear()  # everything was read back from the storage
        self.damaged(damage)

    def damaged(self, subject: str | None) -> None:
        """Note which files of the run could not be used at its restart; None if all could be."""
        self._counts.damage = subject or ""

    def evaluated(self, t: int, loss: float | None) -> None:
        """Record the held-out loss of the syncer's model, nats per token, as of syncer step `t`.

        A loss that is not finite means that the model is not finite.
        """
        merge_measures.evaluated(self._counts, t, loss)

    def hopeless(self, phase: Phase) -> RunFailed | None:
        """Return why the run should end: every island that has devices was refused for good."""
        return island_measures.hopeless(self._counts) if phase is Phase.RUNNING else None

    def status(self, rule: Rule, state: State, now_s: float) -> RunStatus:
        """Return the present status of the run."""
        status = status_of(self._run, self._sizes, self._counts, rule, state, now_s)
        status["links"] = [*self._links.rows(self._counts.links, state, now_s)]
        return self.timed(status, now_s)

    def view(self, state: State) -> View:
        """Return the facts from which the fleet decides."""
        return view_of(self._counts, state)

    def summary(self, state: State, now_s: float) -> dict[str, object]:
        """Return those final figures of the run that the syncer measures."""
        return summary_of(self._sizes, self._counts, state, now_s) | run_time.summary(self._counts)
