"""What a run measures of itself: decisions are the rules', measurements are kept here.

`saw` is told every event with the states around it, `heard` what learners measured; `status` and
`summary` are read off at any time. Times are seconds of the syncer's clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import TypeAdapter

from cluster.failures import Failure
from cluster.status import Figures, FragmentStatus, IslandStatus, RoundStatus, RunStatus
from coordinator import ledger, suspects
from coordinator.codec import Wire
from coordinator.errors import RunFailed
from coordinator.membership import SPEAKING, Member
from coordinator.membership import Status as Standing
from coordinator.protocol import (
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
RATE_SMOOTHING = 0.1
"""Weight of the newest sample in a moving average."""


@dataclass(slots=True)
class _Watched:
    """One island over all its lives."""

    group: str
    lives: int = 0
    steps_before: int = 0
    life: Life | None = None
    vital_life: Life | None = None
    reported_s: float = math.nan
    steps: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    vitals: Vitals = field(default_factory=lambda: Vitals(math.nan))
    computing_before_s: float = 0.0
    contributions: int = 0
    cosine: float | None = None
    refused: str = ""
    rejected: bool = False  # for good: it will not ask again
    fault_s: float | None = None
    fault_life: Life | None = None
    failed: str = ""  # since its last contribution


@dataclass(slots=True)
class _Memory:
    """All that was counted so far, by the names of `Measures`, so that it outlasts the process."""

    islands: dict[Island, _Watched]
    began_s: float
    first_s: float
    stopping_s: float
    ended_s: float
    up_spans: list[tuple[float, float]]
    merged_s: float
    max_gap_s: float
    recent: list[int]
    up_bytes: int
    down_bytes: int
    refusals: Counter[str]
    recovery_s: list[float]
    faults: int
    heldout: list[tuple[int, float]]
    holding: frozenset[Island]
    held_since_s: float
    held_s: float
    merges_lost: int
    troubles: dict[str, str]
    round_s: float
    grace_s: float
    staleness: float
    failures: Counter[str]
    unjudged: Counter[str]
    unsound: int = 0
    jumps: dict[int, str] = field(default_factory=dict[int, str])
    not_finite: str = ""


_MEMORY = TypeAdapter(_Memory)


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
    ) -> None:
        self._run, self._sizes, self._down = run, sizes, wire_down
        self._islands = {island: _Watched(group) for island, group in islands.items()}
        self._began_s, self._first_s, self._stopping_s = now_s, math.nan, math.nan
        self._ended_s = math.nan
        self._up_spans: list[tuple[float, float]] = []
        self._merged_s, self._max_gap_s = math.nan, 0.0
        self._recent: list[int] = []
        self._up_bytes = self._down_bytes = 0
        self._refusals: Counter[str] = Counter()
        self._recovery_s: list[float] = []
        self._faults = 0
        self._heldout: list[tuple[int, float]] = []
        self._merges_lost = self._unsound = 0
        self._jumps: dict[int, str] = {}  # of each fragment whose last merge was undone, why
        self._not_finite = ""
        self._failures: Counter[str] = Counter()
        self._unjudged: Counter[str] = Counter()
        self._troubles: dict[str, str] = {}
        self._holding, self._held_since_s, self._held_s = frozenset(islands), now_s, 0.0
        self._round_s = self._grace_s = self._staleness = math.nan

    def memory(self) -> Any:
        """All that was counted so far, as plain data."""
        named = {each.name: getattr(self, f"_{each.name}") for each in fields(_Memory)}
        return _MEMORY.dump_python(_Memory(**named), mode="json")

    def remember(self, memory: Any) -> None:
        """Count on from there.

        Errors: `ValueError` if another version has written it.
        """
        kept = _MEMORY.validate_python(memory)
        for each in fields(_Memory):
            setattr(self, f"_{each.name}", getattr(kept, each.name))

    # --- what is told -----------------------------------------------------------------------------

    def saw(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], now_s: float
    ) -> None:
        """Every event that the rules took in, and what they made of it."""
        if isinstance(event, Report) and not any(isinstance(effect, Void) for effect in effects):
            self._reported(event, now_s)
        if isinstance(event, Arrived):
            self._up_bytes += event.contribution.bytes
            if not any(isinstance(effect, Discard) for effect in effects):
                self._delivered(event.contribution.id.life, now_s)
        if isinstance(event, Unsound):
            self._undone(before, event, after)
        if isinstance(event, Merged) and after.merges > before.merges:
            self._jumps.pop(event.fragment, None)
            self._pointed(before, event)
        if isinstance(event, Resume):
            for fragment, version in zip(before.fragments, event.versions, strict=True):
                self._merges_lost += fragment.version.number - version.number
        for effect in effects:
            if isinstance(effect, Granted):
                watched = self._watched(effect.life.island)
                watched.lives, watched.refused = watched.lives + 1, ""
                watched.rejected = False
            if isinstance(effect, Refused):
                self.refused(effect.island, effect.why, for_good=effect.retry_s is None)
            if isinstance(effect, Discard):
                self._refusals[effect.fate] += 1
            if isinstance(effect, Merge):
                self._closed(before.fragments[effect.fragment], effect, now_s)
            if isinstance(effect, Publish):
                size = self._sizes[effect.fragment]
                self._down_bytes += self._down.bytes_of(size) * len(effect.to)
        if after.merges > before.merges:
            merged = next(
                new.participants
                for old, new in zip(before.fragments, after.fragments, strict=True)
                if old.round != new.round and new.round and new.round.stage is Stage.STORING
            )
            self._recent = [*self._recent, len(merged)][-RECENT_MERGES:]
            if not math.isnan(self._merged_s):
                self._max_gap_s = max(self._max_gap_s, now_s - self._merged_s)
            self._merged_s = now_s
        if before.phase is Phase.RUNNING and after.phase is not Phase.RUNNING:
            self._stopping_s = now_s
        if before.phase is not after.phase and after.phase is Phase.FINISHED:
            self._ended_s = now_s

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
            self._round_s = _smoothed(self._round_s, now_s - round_.opened_s)
            since_s = now_s if round_.quorum_since_s is None else round_.quorum_since_s
            self._grace_s = now_s - since_s
        for item in order.items:
            old = fragment.version.number - item.contribution.base.number
            self._staleness = _smoothed(self._staleness, old)

    def _reported(self, report: Report, now_s: float) -> None:
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

    def _watched(self, island: Island) -> _Watched:
        return self._islands.setdefault(island, _Watched("?"))

    def began(self, now_s: float) -> None:
        """The run began then; said again by each generation, and the first counts."""
        if now_s < self._began_s:
            self._began_s = self._held_since_s = now_s

    def fault(self, island: Island, now_s: float) -> None:
        """Something was broken on purpose."""
        self._faults += 1
        if (watched := self._islands.get(island)) is not None:
            watched.fault_s, watched.fault_life = now_s, watched.life

    def refused(self, island: Island, why: str, *, for_good: bool = True) -> None:
        """An island was not let in."""
        watched = self._watched(island)
        watched.refused, watched.rejected = why, for_good

    def failed(self, life: Life | None, failure: Failure) -> None:
        """An island has failed, or a task for nobody in particular; by reason."""
        self._failures[failure.reason] += 1
        if life is not None:
            self._watched(life.island).failed = failure.why

    def unjudged(self, why: str) -> None:
        """An evaluation of the model has come to nothing."""
        self._unjudged[why] += 1

    def held(self, islands: Mapping[Island, str], now_s: float) -> None:
        """These islands have devices now, each with its group; until it is said again."""
        self._held_s += len(self._holding) * (now_s - self._held_since_s)
        self._holding, self._held_since_s = frozenset(islands), now_s
        for island, group in islands.items():
            self._islands.setdefault(island, _Watched(group))

    def trouble(self, what: str, why: str | None) -> None:
        """Something of the run is not durable at present, and why; None: it is again."""
        if why is not None:
            self._troubles[what] = why
        else:
            self._troubles.pop(what, None)

    def evaluated(self, t: int, loss: float | None) -> None:
        """Take in the held-out loss of the syncer's model, nats per token, as of syncer step `t`;
        one that is not finite says that the model is not."""
        if loss is not None and math.isfinite(loss):
            self._heldout.append((t, loss))
            self._not_finite = ""
        else:
            self._not_finite = f"its held-out loss at t = {t} is not finite"

    def _undone(self, before: State, event: Unsound, after: State) -> None:
        if after.fragments[event.fragment] is before.fragments[event.fragment]:
            return  # said of a round that is over
        self._unsound += 1
        self._jumps[event.fragment] = (
            f"the step of fragment {event.fragment} to {event.version} had norm {event.norm:.3g} "
            "and was undone"
        )

    def _pointed(self, before: State, event: Merged) -> None:
        """Where each contribution of a merge pointed."""
        if (round_ := before.fragments[event.fragment].round) is None:
            return
        for found in suspects.cosines_of(round_.items, round_.trial, event):
            for island, cosine in found.items():
                self._watched(island).cosine = cosine

    def _delivered(self, life: Life, now_s: float) -> None:
        watched = self._watched(life.island)
        watched.contributions += 1
        watched.failed = ""
        if watched.fault_s is not None and life != watched.fault_life:
            self._recovery_s.append(now_s - watched.fault_s)
            watched.fault_s = watched.fault_life = None

    def _advanced(self, start_s: float, stop_s: float) -> None:
        """Some learner advanced all through this time."""
        if math.isnan(self._first_s):
            self._first_s = start_s
        spans = self._up_spans
        while spans and spans[-1][1] >= start_s:
            start_s = min(start_s, spans.pop()[0])
        spans.append((max(start_s, self._first_s), stop_s))

    def hopeless(self, phase: Phase) -> RunFailed | None:
        """Why the run had better end: of the islands that have devices nobody will ever come."""
        held = [self._islands[island] for island in sorted(self._holding)]
        if phase is Phase.RUNNING and held and all(each.rejected for each in held):
            whys = dict.fromkeys(each.refused for each in held)
            return RunFailed("every island was refused for good: " + "; ".join(whys))
        return None

    # --- what can be read off ---------------------------------------------------------------------

    def status(self, rule: Rule, state: State, now_s: float) -> RunStatus:
        """The run as it is now."""
        running_s = now_s - self._first_s
        left_s = None
        if state.t > 0 and state.phase is Phase.RUNNING:
            left_s = running_s * (rule.steps - state.t) / state.t
        starting = math.isnan(self._first_s) and state.phase is Phase.RUNNING
        alive = sum(m.status is Standing.LIVE for m in state.members.values())
        return RunStatus(
            run=self._run,
            t=state.t,
            steps=rule.steps,
            elapsed_s=now_s - self._began_s,
            left_s=left_s,
            phase="starting" if starting else state.phase.value,
            islands=[self._island(state, island) for island in self._islands],
            fragments=[_fragment(state, p) for p in range(len(state.fragments))],
            participants=sum(self._recent) / len(self._recent) if self._recent else 0.0,
            alive=alive,
            merges=state.merges,
            tokens_trained=state.ledger.trained,
            tokens_per_s=sum(
                self._islands[m.life.island].tokens_per_s
                for m in state.members.values()
                if m.status is Standing.LIVE
            ),
            heldout=self._heldout,
            faults=self._faults,
            wanted=len(self._islands),
            spares=0,
            refusals=dict(self._refusals),
            failures=dict(self._failures),
            unjudged=dict(self._unjudged),
            figures=self._figures(rule, state, now_s),
        )

    def _figures(self, rule: Rule, state: State, now_s: float) -> Figures:
        totals = ledger.totals(state.ledger, self._sizes)
        return Figures(
            quorum=rule.min_quorum,
            generation=state.generation,
            tokens_merged=totals.merged,
            tokens_discarded=totals.discarded,
            tokens_lost=totals.lost,
            merge_age_s=_known(now_s - self._merged_s),
            round_s=_known(self._round_s),
            grace_s=_known(self._grace_s),
            staleness=_known(self._staleness),
            unsound_merges=self._unsound,
            trouble="; ".join(filter(None, [self._not_finite, *self._jumps.values()])),
            merges_lost=self._merges_lost,
            not_durable="; ".join(f"{what}: {why}" for what, why in self._troubles.items()),
            up_bytes=self._up_bytes,
            down_bytes=self._down_bytes,
            goodput=self._goodput(now_s),
            uptime=self._uptime(now_s),
        )

    def _goodput(self, now_s: float) -> float:
        """Share of the granted island-seconds that was spent computing."""
        granted_s = self._held_s + len(self._holding) * (now_s - self._held_since_s)
        computing_s = sum(
            w.computing_before_s + w.vitals.computing_s for w in self._islands.values()
        )
        return computing_s / granted_s if granted_s > 0 else 0.0

    def _uptime(self, now_s: float) -> float:
        """Share of the time, from the first step to the stop, in which some learner advanced."""
        until_s = now_s if math.isnan(self._stopping_s) else self._stopping_s
        up_s = sum(min(stop, until_s) - min(start, until_s) for start, stop in self._up_spans)
        whole_s = until_s - self._first_s
        return round(up_s / whole_s, 4) if whole_s > 0 else 0.0

    def _island(self, state: State, island: Island) -> IslandStatus:
        watched, member = self._islands[island], state.members.get(island)
        loss = watched.vitals.loss
        why = watched.refused or (_why(member) if member else "its process starts")
        if watched.failed and (member is None or member.status in SPEAKING):
            why = f"{why}, after {watched.failed}"
        return IslandStatus(
            island=island,
            group=member.group if member else watched.group,
            state=member.status.value if member else "starting",
            incarnation=member.life.incarnation if member else 0,
            life=watched.lives,
            steps=watched.steps_before + watched.steps,
            tokens_per_s=watched.tokens_per_s,
            loss=None if math.isnan(loss) else loss,
            why=why,
            contributions=watched.contributions,
            cosine=watched.cosine,
            restarts=max(0, watched.lives - 1),
        )

    def summary(self, state: State, now_s: float) -> dict[str, object]:
        """The figures that a run ends with, of those that are measured here (docs/protocol.md)."""
        totals = ledger.totals(state.ledger, self._sizes)
        ended_s = now_s if math.isnan(self._ended_s) else self._ended_s
        tokens = max(1, totals.trained)
        return {
            "tokens_trained": totals.trained,
            "tokens_merged": totals.merged,
            "tokens_discarded": totals.discarded,
            "tokens_lost": totals.lost,
            "tokens_outstanding": totals.outstanding,
            "merges": state.merges,
            "mean_participants": state.participations / state.merges if state.merges else 0.0,
            "goodput": self._goodput(ended_s),
            "uptime": self._uptime(ended_s),
            "faults": self._faults,
            "recovery_s": self._recovery_s,
            "max_merge_gap_s": self._max_gap_s,
            "up_bytes_per_token": self._up_bytes / tokens,
            "down_bytes_per_token": self._down_bytes / tokens,
            "rejected_contributions": self._refusals.total(),
        }


def advancing_since(report: Report, steps: int, before_s: float, now_s: float) -> float:
    """Since when its learner has advanced, if it reports `steps` more; `before_s`: its last report,
    NaN if there was none. Over so many usual steps, or a second each if that is more, at most."""
    usual_s = max(STALLED_FLOOR_S, STALLED_STEPS * report.step_s) * steps
    since_s = now_s - report.step_s if math.isnan(before_s) else before_s
    return max(since_s, now_s - usual_s)


def _smoothed(known: float, sample: float) -> float:
    return sample if math.isnan(known) else known + RATE_SMOOTHING * (sample - known)


def _why(member: Member) -> str:
    """Why an island is in its state; one on trial trains on, and nothing of it is merged."""
    if not member.trial or member.status not in SPEAKING:
        return member.why
    return f"on trial: {member.trial} more that do not point against the others"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _fragment(state: State, p: int) -> FragmentStatus:
    fragment = state.fragments[p]
    round_ = fragment.round
    shown = None
    if round_ is not None:
        why = round_.why if round_.stage is Stage.OPEN else round_.stage.value
        shown = RoundStatus(arrived=len(round_.arrived), asked=len(round_.called), why=why)
    return FragmentStatus(
        fragment=p,
        version=fragment.version.number,
        participants=list(fragment.participants),
        round=shown,
    )
