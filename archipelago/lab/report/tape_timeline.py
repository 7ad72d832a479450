"""The timeline of a run from its tape: the lives of islands, rounds, merges and adoptions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from archipelago.lab.report.timeline import FlowStop, Lane, Timeline
from cluster.names import shards_of
from cluster.storage.state_history import ReplayedEvent
from coordinator.protocol import (
    Adopted,
    Arrived,
    Ask,
    ContributionId,
    Discard,
    Effect,
    Event,
    Fragment,
    Granted,
    Left,
    Life,
    Lost,
    Merge,
    Merged,
    Publish,
    Report,
    Resume,
    ShardBack,
    ShardLost,
    Stop,
    Unsound,
    Version,
    Void,
)

SYNCER_LANE = Lane("syncer", "syncer")
"""The lane of the syncer."""
MOST = 400_000
"""The most events of a timeline, which is about what a browser can show."""


@dataclass(slots=True)
class _Living:
    """A life that has begun."""

    began_s: float
    reported_s: float
    """The end of the last slice of steps."""
    steps: int = 0
    """The inner steps at that time."""
    last_s: float = 0.0
    """The time of the last report."""
    last_steps: int = 0
    """The inner steps at that time."""


@dataclass(slots=True)
class TapeTimeline:
    """A timeline that follows the events of a tape."""

    timeline: Timeline
    shards: int
    """The number of shards."""
    fragments: int
    """The number of fragments."""
    most: int = MOST
    """The most events of the timeline."""
    coarse_s: float = 0.0
    """The least length of a slice of steps: shorter ones become one."""
    full: bool = False
    """Whether the timeline has `most` events, so that later ones are left out."""
    _living: dict[Life, _Living] = field(default_factory=dict[Life, _Living])
    _asked: dict[Fragment, float] = field(default_factory=dict[Fragment, float])
    _orders: dict[tuple[Fragment, Version], tuple[float, Merge]] = field(
        default_factory=dict[tuple[Fragment, Version], tuple[float, Merge]]
    )
    _handed: dict[ContributionId, FlowStop] = field(default_factory=dict[ContributionId, FlowStop])
    _merged: dict[tuple[Fragment, Version], tuple[FlowStop, Sequence[ContributionId]]] = field(
        default_factory=dict[tuple[Fragment, Version], tuple[FlowStop, Sequence[ContributionId]]]
    )
    _busy: defaultdict[Lane, float] = field(
        default_factory=lambda: defaultdict[Lane, float](lambda: -math.inf)
    )
    _now_s: float = 0.0

    def follow(self, replayed: Iterable[ReplayedEvent]) -> None:
        """Add all events of a tape, up to `most`.

        Errors: the errors of iterating over `replayed`; what came before stays.
        """
        for each in replayed:
            self._now_s = each.now_s
            self._event(each.event, each.now_s)
            for effect in each.effects:
                self._effect(effect, each.now_s)
            if each.before.phase is not each.after.phase:
                self.timeline.instant(SYNCER_LANE, f"phase: {each.after.phase.value}", each.now_s)
            if self.timeline.size > self.most:
                self.full = True
                return

    def end(self) -> None:
        """End what is under way: the lives, and the rounds."""
        for life in [*self._living]:
            self._dies(life, self._now_s, "the tape ends")
        for fragment, asked_s in self._asked.items():
            self._round(fragment, asked_s, self._now_s, "the tape ends")
        self._asked.clear()

    # --- events -----------------------------------------------------------------------------------

    def _event(self, event: Event, now_s: float) -> None:
        line = self.timeline
        match event:
            case Report(life, progress, _) if (living := self._living.get(life)) is not None:
                living.last_s, living.last_steps = now_s, progress.steps
                if now_s - living.reported_s >= self.coarse_s:
                    self._steps(life, living)
            case Arrived(contribution):
                self._arrived(contribution.id, now_s, contribution.tokens, contribution.bytes)
            case Merged(fragment, version):
                self._merges(fragment, version, now_s, event.turned)
            case Unsound(fragment, version, norm):
                self._orders.pop((fragment, version), None)
                lane = self._shard(fragment)
                line.instant(lane, f"merge f{fragment} {version} undone", now_s, norm=str(norm))
            case Adopted(life, fragment, version):
                self._adopts(life, fragment, version, now_s)
            case Lost(life, why):
                line.instant(_lane(life), f"lost: {why}", now_s)
                self._dies(life, now_s, why)
            case Left(life, _):
                line.instant(_lane(life), "left", now_s)
                self._dies(life, now_s, "left")
            case Resume(generation, _):
                line.instant(SYNCER_LANE, f"the syncer is back, generation {generation}", now_s)
            case Stop(why):
                line.instant(SYNCER_LANE, f"stop: {why}", now_s)
            case ShardLost(fragments):
                for lane in {self._shard(p) for p in fragments}:
                    line.instant(lane, "lost", now_s)
            case ShardBack(fragments):
                for lane in {self._shard(p) for p in fragments}:
                    line.instant(lane, "back", now_s)
            case _:
                pass

    def _arrived(self, key: ContributionId, now_s: float, tokens: int, size: int) -> None:
        lane = _lane(key.life)
        self._handed[key] = FlowStop(lane, now_s)
        name = f"hand in f{key.fragment}"
        steps = f"{key.from_step} to {key.to_step}"
        self.timeline.slice(lane, name, now_s, now_s, steps=steps, tokens=tokens, bytes=size)

    def _merges(
        self, fragment: Fragment, version: Version, now_s: float, turned: float | None
    ) -> None:
        if (order := self._orders.pop((fragment, version), None)) is None:
            return
        ordered_s, merge = order
        lane = self._shard(fragment)
        start_s = min(now_s, max(ordered_s, self._busy[lane]))  # a shard merges one at a time
        self._busy[lane] = now_s
        merged = [item.contribution.id for item in merge.items]
        self.timeline.slice(
            lane, f"merge f{fragment} {version}", start_s, now_s,
            participants=[str(key.life) for key in merged], why=merge.why, cosine=turned,
        )  # fmt: skip
        self._merged[fragment, version] = FlowStop(lane, start_s), merged

    def _adopts(self, life: Life, fragment: Fragment, version: Version, now_s: float) -> None:
        lane, here = _lane(life), FlowStop(_lane(life), now_s)
        self.timeline.slice(lane, f"adopt f{fragment} {version}", now_s, now_s)
        if (found := self._merged.get((fragment, version))) is None:
            return
        merge, contributions = found
        own = [
            self._handed.pop(key)
            for key in contributions
            if key.life == life and key in self._handed
        ]
        name = f"f{fragment} {version}"
        for stop in own:
            if stop.at_s <= merge.at_s <= now_s:
                self.timeline.flows.append((name, [stop, merge, here]))
        if not own and merge.at_s <= now_s:
            self.timeline.flows.append((name, [merge, here]))

    # --- effects ----------------------------------------------------------------------------------

    def _effect(self, effect: Effect, now_s: float) -> None:
        match effect:
            case Granted(life):
                for older in [each for each in self._living if each.island == life.island]:
                    self._dies(older, now_s, "a new life began")
                self._living[life] = _Living(now_s, now_s, 0, now_s, 0)
            case Void(life, why) if life in self._living:
                self.timeline.instant(_lane(life), f"its life is over: {why}", now_s)
                self._dies(life, now_s, why)
            case Ask(_, fragment):
                self._asked.setdefault(fragment, now_s)
            case Merge(fragment, version, _, why):
                self._orders[fragment, version] = now_s, effect
                if (asked_s := self._asked.pop(fragment, None)) is not None:
                    self._round(fragment, asked_s, now_s, why)
            case Publish(fragment, version, _, to):
                self.timeline.instant(
                    SYNCER_LANE, f"publish f{fragment} {version}", now_s, learners=len(to)
                )
                self._forget(fragment, version)
            case Discard(contribution, fate, why):
                key = contribution.id
                self._handed.pop(key, None)
                self.timeline.instant(
                    _lane(key.life), f"refused f{key.fragment}: {fate.value}", now_s, why=why
                )
            case _:
                pass

    def _forget(self, fragment: Fragment, version: Version) -> None:
        """Forget old versions of a fragment, which no learner adopts any more."""
        kept = sorted(v for p, v in self._merged if p == fragment)[-16:]
        for old in [v for p, v in self._merged if p == fragment and v not in kept]:
            for key in self._merged.pop((fragment, old))[1]:
                self._handed.pop(key, None)

    def _round(self, fragment: Fragment, start_s: float, end_s: float, why: str) -> None:
        self.timeline.spans.append(
            (f"rounds f{fragment}", f"round f{fragment}", start_s, end_s, {"why": why})
        )

    def _steps(self, life: Life, living: _Living) -> None:
        """Add a slice of the steps since the last one."""
        if living.last_steps > living.steps:
            name = f"steps {living.steps} to {living.last_steps}"
            self.timeline.slice(_lane(life), name, living.reported_s, living.last_s)
        living.reported_s, living.steps = living.last_s, living.last_steps

    def _dies(self, life: Life, now_s: float, why: str) -> None:
        if (living := self._living.pop(life, None)) is None:
            return
        self._steps(life, living)
        name = f"life {life.incarnation}"
        self.timeline.slice(_lane(life), name, living.began_s, now_s, ended=why)

    def _shard(self, fragment: Fragment) -> Lane:
        places: Mapping[str, list[Fragment]] = shards_of(self.shards, self.fragments)
        return Lane("shards", next(name for name, own in places.items() if fragment in own))


def _lane(life: Life) -> Lane:
    return Lane("islands", life.island)
