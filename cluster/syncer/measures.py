"""What a run measures of itself: decisions are the rules', measurements are kept here.

`saw` is told every event with the states around it, `heard` what learners measured; `status` and
`summary` are read off at any time. Times are seconds of the syncer's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.failures import Failure
from cluster.status import CURVE_KEPT, RunStatus
from cluster.syncer.counts import COUNTS, RECOVERIES_KEPT, SPANS_KEPT, Counts, Watched, fresh
from cluster.syncer.report import status_of, summary_of, view_of
from cluster.view import View
from coordinator import suspects
from coordinator.codec import Wire
from coordinator.errors import RunFailed
from coordinator.protocol import (
    Adopted,
    Arrived,
    Discard,
    Effect,
    Event,
    Granted,
    Island,
    Life,
    Merge,
    Merged,
    Publish,
    Refused,
    Report,
    Resume,
    Unsound,
    Vitals,
    Void,
)
from coordinator.state import FragmentState, Phase, Rule, Stage, State

RECENT_MERGES = 24
"""The participants shown are a mean over so many merges."""
STALLED_STEPS = 3.0
"""A learner whose next step takes longer than this many of its usual ones did not advance."""
STALLED_FLOOR_S = 1.0
WORDS = Report | Adopted
"""Of a learner: its life ends over one only if that cannot be true."""
RATE_SMOOTHING = 0.1
"""Weight of the newest sample in a moving average."""


class Measures:
    """One run's measurements; `islands` maps each configured island to its group."""

    def __init__(
        self,
        run: str,
        islands: Mapping[Island, str],
        sizes: Sequence[int],
        wire_down: Wire,
        *,
        now_s: float,
        wire_moments: Wire | None = None,
    ) -> None:
        """`wire_moments`: how shared first moments are written; None: the run shares none."""
        self._run, self._sizes, self._down = run, sizes, wire_down
        self._moments = wire_moments
        self._counts = fresh(islands, now_s)

    @property
    def counts(self) -> Counts:
        return self._counts

    def memory(self) -> Any:
        """All that was counted so far, as plain data."""
        return COUNTS.dump_python(self._counts, mode="json")

    def remember(self, memory: Any) -> None:
        """Count on from there.

        Errors: `ValueError` if another version has written it.
        """
        self._counts = COUNTS.validate_python(memory)

    def saw(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], now_s: float
    ) -> None:
        """Every event that the rules took in, and what they made of it."""
        if isinstance(event, Report) and not any(isinstance(effect, Void) for effect in effects):
            self.reported(event, now_s)
        if isinstance(event, Arrived):
            self._counts.up_bytes += event.contribution.bytes
            if not any(isinstance(effect, Discard) for effect in effects):
                self.delivered(event.contribution.id.life, now_s)
                said = event.contribution.id
                self._watched(said.life.island).handed_in[said.fragment] = said.to_step
        if isinstance(event, Adopted):
            self._adopted(event)
        if isinstance(event, Unsound):
            self._undone(before, event, after)
        if isinstance(event, Merged) and after.merges > before.merges:
            self._counts.jumps.pop(event.fragment, None)
            self._pointed(before, event)
        if isinstance(event, Resume):
            for fragment, version in zip(before.fragments, event.versions, strict=True):
                lost = fragment.version.number - version.number
                self._counts.merges_lost += max(0, lost)  # what is stored may be later
        for effect in effects:
            if isinstance(effect, Granted):
                watched = self._watched(effect.life.island)
                watched.lives, watched.refused = watched.lives + 1, ""
                watched.rejected, watched.handed_in = False, {}
            if isinstance(effect, Void) and effect.distrusted:
                self._counts.distrusted += isinstance(event, WORDS)
            if isinstance(effect, Refused):
                self.refused(effect.island, effect.why, for_good=effect.retry_s is None)
            if isinstance(effect, Discard):
                self._counts.refusals[effect.fate] += 1
            if isinstance(effect, Merge):
                self._closed(before.fragments[effect.fragment], effect, now_s)
            if isinstance(effect, Publish):
                bytes_ = self._published_bytes(before.fragments[effect.fragment], effect)
                self._counts.down_bytes += bytes_ * len(effect.to)
        if after.merges > before.merges:
            merged = next(
                new.participants
                for old, new in zip(before.fragments, after.fragments, strict=True)
                if old.round != new.round and new.round and new.round.stage is Stage.STORING
            )
            self._counts.recent = [*self._counts.recent, len(merged)][-RECENT_MERGES:]
            if not math.isnan(self._counts.merged_s):
                self._counts.max_gap_s = max(self._counts.max_gap_s, now_s - self._counts.merged_s)
            self._counts.merged_s = now_s
        if before.phase is Phase.RUNNING and after.phase is not Phase.RUNNING:
            self._counts.stopping_s = now_s
        if before.phase is not after.phase and after.phase is Phase.FINISHED:
            self._counts.ended_s = now_s

    def _published_bytes(self, fragment: FragmentState, order: Publish) -> int:
        """Of what one learner is sent; `fragment`: as it was before, in its round."""
        size, round_ = self._sizes[order.fragment], fragment.round
        if self._moments is None or round_ is None or round_.last:
            return self._down.bytes_of(size)
        shared = any(c.moments_norm is not None for c in round_.items)
        return self._down.bytes_of(size) + (self._moments.bytes_of(size) if shared else 0)

    def heard(self, life: Life, vitals: Vitals) -> None:
        """What came with a report that was not void."""
        watched = self._watched(life.island)
        if watched.vital_life != life:
            watched.computing_before_s += watched.vitals.computing_s
            watched.vital_life = life
        watched.vitals = vitals

    def _closed(self, fragment: FragmentState, order: Merge, now_s: float) -> None:
        """A round was closed: how long it was open, and how old was what it had gathered."""
        if (round_ := fragment.round) is not None:
            self._counts.round_s = _smoothed(self._counts.round_s, now_s - round_.opened_s)
            since_s = now_s if round_.quorum_since_s is None else round_.quorum_since_s
            self._counts.grace_s = now_s - since_s
        steps = sum(item.contribution.steps for item in order.items)
        shares = [item.weight * steps / item.contribution.steps for item in order.items]
        self._counts.largest_share = _smoothed(self._counts.largest_share, max(shares))
        for item in order.items:
            old = fragment.version.number - item.contribution.base.number
            self._counts.staleness = _smoothed(self._counts.staleness, old)

    def reported(self, report: Report, now_s: float) -> None:
        """A report that was not void: its learner has advanced."""
        watched = self._watched(report.life.island)
        if watched.life != report.life:
            watched.steps_before += watched.steps
            watched.life, watched.steps, watched.tokens = report.life, 0, 0
            watched.reported_s, watched.tokens_per_s = math.nan, 0.0
        if (steps := report.progress.steps - watched.steps) <= 0:
            return
        self._advanced(advancing_since(report, steps, watched.reported_s, now_s), now_s)
        if not math.isnan(watched.reported_s) and now_s > watched.reported_s:
            rate = (report.progress.tokens - watched.tokens) / (now_s - watched.reported_s)
            known = watched.tokens_per_s or rate
            watched.tokens_per_s = known + RATE_SMOOTHING * (rate - known)
        watched.steps, watched.tokens = report.progress.steps, report.progress.tokens
        watched.reported_s = now_s

    def _watched(self, island: Island) -> Watched:
        return self._counts.islands.setdefault(island, Watched("?"))

    def began(self, now_s: float) -> None:
        """The run began then; said again by each generation, and the first counts."""
        if now_s < self._counts.began_s:
            self._counts.began_s = self._counts.held_since_s = now_s

    def fault(self, island: Island, now_s: float) -> None:
        """Something was broken on purpose."""
        self._counts.faults += 1
        if (watched := self._counts.islands.get(island)) is not None:
            watched.fault_s, watched.fault_life = now_s, watched.life

    def refused(self, island: Island, why: str, *, for_good: bool = True) -> None:
        """An island was not let in."""
        watched = self._watched(island)
        watched.refused, watched.rejected = why, for_good

    def failed(self, life: Life | None, failure: Failure) -> None:
        """An island has failed, or a task for nobody in particular; by reason."""
        self._counts.failures[failure.reason] += 1
        if life is not None:
            self._watched(life.island).failed = failure.why

    def unjudged(self, why: str) -> None:
        """An evaluation of the model has come to nothing."""
        self._counts.unjudged[why] += 1

    def held(self, islands: Mapping[Island, str], now_s: float) -> None:
        """These islands have devices now, each with its group; until it is said again."""
        self._counts.held_s += len(self._counts.holding) * (now_s - self._counts.held_since_s)
        self._counts.holding, self._counts.held_since_s = frozenset(islands), now_s
        for island, group in islands.items():
            self._counts.islands.setdefault(island, Watched(group))

    def trouble(self, what: str, why: str | None) -> None:
        """Something of the run is not durable at present, and why; None: it is again."""
        if why is not None:
            self._counts.troubles[what] = why
        else:
            self._counts.troubles.pop(what, None)

    def came_back(self, memory: Any, damage: str | None) -> None:
        """Count on from a memory, if there is one, and note the damage."""
        if memory is not None:
            self.remember(memory)
        self.damaged(damage)

    def damaged(self, what: str | None) -> None:
        """Note which of the run's files could not be used when it came back; None: all could."""
        self._counts.damage = what or ""

    def evaluated(self, t: int, loss: float | None) -> None:
        """Take in the held-out loss of the syncer's model, nats per token, as of syncer step `t`;
        one that is not finite says that the model is not."""
        if loss is not None and math.isfinite(loss):
            self._counts.heldout.append((t, loss))
            if len(self._counts.heldout) > CURVE_KEPT:
                del self._counts.heldout[1:-1:2]
            self._counts.not_finite = ""
        else:
            self._counts.not_finite = f"its held-out loss at t = {t} is not finite"

    def _undone(self, before: State, event: Unsound, after: State) -> None:
        if after.fragments[event.fragment] is before.fragments[event.fragment]:
            return  # said of a round that is over
        self._counts.unsound += 1
        self._counts.jumps[event.fragment] = (
            f"the step of fragment {event.fragment} to {event.version} had norm {event.norm:.3g} "
            "and was undone"
        )

    def _adopted(self, event: Adopted) -> None:
        """How many steps it was since the learner had handed the fragment in, if it had."""
        handed_in = self._watched(event.life.island).handed_in.pop(event.fragment, None)
        if handed_in is not None:
            self._counts.adoptions += 1
            self._counts.steps_to_adoption += event.progress.steps - handed_in

    def _pointed(self, before: State, event: Merged) -> None:
        """Where each contribution of a merge pointed, and where all of them together."""
        if event.turned is not None:
            self._counts.outer_cosine = _smoothed(self._counts.outer_cosine, event.turned)
        if event.rate is not None:
            self._counts.outer_rate = _smoothed(self._counts.outer_rate, event.rate)
        if (round_ := before.fragments[event.fragment].round) is None:
            return
        for found in suspects.cosines_of(round_.items, round_.trial, event):
            for island, cosine in found.items():
                self._watched(island).cosine = cosine

    def delivered(self, life: Life, now_s: float) -> None:
        """Something of this life got into the model."""
        watched = self._watched(life.island)
        watched.contributions += 1
        watched.failed = ""
        if watched.fault_s is not None and life != watched.fault_life:
            self._counts.recovery_s.append(now_s - watched.fault_s)
            del self._counts.recovery_s[:-RECOVERIES_KEPT]
            watched.fault_s = watched.fault_life = None

    def _advanced(self, start_s: float, stop_s: float) -> None:
        """Some learner advanced all through this time."""
        if math.isnan(self._counts.first_s):
            self._counts.first_s = start_s
        spans = self._counts.up_spans
        while spans and spans[-1][1] >= start_s:
            start_s = min(start_s, spans.pop()[0])
        spans.append((max(start_s, self._counts.first_s), stop_s))
        if len(spans) > SPANS_KEPT and math.isnan(self._counts.stopping_s):
            start_s, stop_s = spans.pop(0)
            self._counts.up_before_s += stop_s - start_s

    def hopeless(self, phase: Phase) -> RunFailed | None:
        """Why the run had better end: of the islands that have devices nobody will ever come."""
        held = [self._counts.islands[island] for island in sorted(self._counts.holding)]
        if phase is Phase.RUNNING and held and all(each.rejected for each in held):
            whys = dict.fromkeys(each.refused for each in held)
            return RunFailed("every island was refused for good: " + "; ".join(whys))
        return None

    def status(self, rule: Rule, state: State, now_s: float) -> RunStatus:
        """The run as it is now."""
        return status_of(self._run, self._sizes, self._counts, rule, state, now_s)

    def view(self, state: State) -> View:
        """What the fleet decides from."""
        return view_of(self._counts, state)

    def summary(self, state: State, now_s: float) -> dict[str, object]:
        """The figures that a run ends with, of those that are measured here (docs/protocol.md)."""
        return summary_of(self._sizes, self._counts, state, now_s)


def advancing_since(report: Report, steps: int, before_s: float, now_s: float) -> float:
    """Since when its learner has advanced, if it reports `steps` more; `before_s`: its last report,
    NaN if there was none. Over so many usual steps, or a second each if that is more, at most."""
    usual_s = max(STALLED_FLOOR_S, STALLED_STEPS * report.step_s) * steps
    since_s = now_s - report.step_s if math.isnan(before_s) else before_s
    return max(since_s, now_s - usual_s)


def _smoothed(known: float, sample: float) -> float:
    return sample if math.isnan(known) else known + RATE_SMOOTHING * (sample - known)
