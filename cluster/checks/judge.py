"""All that may never happen, looked for after every event; and what was covered.

The judge knows the rules' states and effects, its own memory of what went before, and of the truth
as much as is known: all of it in the simulator, nothing of a run that is replayed from its tape. It
computes what it can in another way than the rules do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from cluster.checks.coverage import Coverage
from cluster.checks.truth import TokenWindow, Trouble, Truth, Violation
from coordinator.advance import advance
from coordinator.errors import BrokenInvariant
from coordinator.membership import SPEAKING, Member, Status
from coordinator.protocol import (
    Adopted,
    Arrived,
    Ask,
    Contribution,
    ContributionId,
    Discard,
    Effect,
    Event,
    Fate,
    Finish,
    Fragment,
    Granted,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Lost,
    Merge,
    Merged,
    Missing,
    Publish,
    Reference,
    Refused,
    Release,
    Report,
    Resume,
    ShardLost,
    Shift,
    Stop,
    Store,
    Stored,
    Tick,
    Unsound,
    Version,
    Void,
    Wake,
)
from coordinator.state import FragmentState, Phase, Round, Rule, Stage, State, validate

REFUSALS, NORMS, SILENCE_S, SILENCE_STEPS = 3, 8, 10.0, 30
"""As docs/protocol.md has them, said again so that a change of the rules is noticed."""
BARRED_S, LONGEST_BARRED_S = 5.0, 320.0
REMEMBERED, MOST = 64, 0.7
"""Norms that count for what is usual, and the share of healthy ones that decide it surely."""
PASSING = (Trouble.LOUD, Trouble.FLIPPED, Trouble.ROTTEN)
"""What is poisoned in a way that no gate can know for sure."""
GAMMA, IN_PACE, NEWEST, LEARNT_S = 0.9, 2.0, 0.2, 120.0
"""Of the grace window: share of the slack, who keeps pace, weight of the newest sample."""
AGAINST, AGAIN, SIGMAS = 5, 5, 4.0
"""Merges in a row that point away until a quarantine, and others until one is trusted again; how
far away counts, in deviations."""
STALENESS_OF_PACE = 3
"""With a staler bound a learner that keeps pace can be late by no fault of its own."""
ALMOST = 1e-9


@dataclass(frozen=True, slots=True)
class Seen:
    """One merge: when its round was opened and closed, who was in it, and who was live then."""

    opened_s: float
    closed_s: float
    lives: frozenset[Life]
    live: frozenset[Life]


class Judge:
    """Told of every event by `saw`; raises `Violation`."""

    def __init__(self, rule: Rule, truth: Truth) -> None:
        self.rule, self._truth = rule, truth
        count = rule.schedule.fragments
        self.coverage = Coverage()
        self.rounds_of = [0] * count
        self.pace_judged = 0
        self._merges: dict[tuple[Fragment, Version], tuple[Contribution, ...]] = {}
        self._step: dict[tuple[Fragment, Version], type[Effect]] = {}
        self._merged: set[ContributionId] = set()
        self._windows: list[set[TokenWindow]] = [set() for _ in range(count)]
        self._freed: set[Reference] = set()
        self._granted = 0
        self._refusals: dict[Life, int] = {}
        self._norms: list[list[tuple[float, bool]]] = [[] for _ in range(count)]  # healthy?
        self._against: dict[Life, int] = {}  # merges in a row in which it pointed away
        self._trial: dict[Island, int] = {}
        self._pace: list[float | None] = [None, None]  # to the quorum; from closing to public
        self._live_since: dict[Life, float] = {}
        self._last: list[Seen | None] = [None] * count
        self._durable: list[Version] = [Version(0, 0)] * count
        self._asked: list[tuple[float, frozenset[Life]]] = [(math.nan, frozenset())] * count
        self._void = [0] * count  # versions that have died with their shard since the last one
        self._ending_s = math.nan  # since when the run ends
        self._last_rounds = [False] * count  # is its last round over?

    def _forget(self, after: State) -> None:
        """The syncer had died; what it did since its last promise did not happen."""
        self._last = [None] * len(self._last)
        self._void = [0] * len(self._void)
        self._live_since, self._against, self._pace = {}, {}, [None, None]
        for p, norms in enumerate(self._norms):
            last = after.fragments[p].norms.recent[-1:]
            while norms and norms[-1][0] not in [sample.norm for sample in last]:
                norms.pop()
        self._trial = {island: m.trial for island, m in after.members.items() if m.trial}
        self._last_rounds = [False] * len(self._last_rounds)

    def _forget_fragments(self, before: State, fragments: Sequence[Fragment]) -> None:
        """Their shard is dead, and with it what was merged and is not public."""
        for p in fragments:
            if (round_ := before.fragments[p].round) is not None:
                self._void[p] += round_.stage is not Stage.OPEN
                self._last_rounds[p] = False
            self._last[p], self._asked[p] = None, (math.nan, frozenset())

    def saw(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], now_s: float
    ) -> None:
        """Everything that must hold after every event."""
        self.coverage.saw(before, event, effects)
        if isinstance(event, Resume):
            self._forget(after)
        if isinstance(event, ShardLost):
            self._forget_fragments(before, event.fragments)
        if isinstance(event, Unsound) and self._is_merging(before, event):
            self._void[event.fragment] += 1
            self._asked[event.fragment] = (math.nan, frozenset())
            self._unsound(before, event, after, effects)
        if before.phase is Phase.RUNNING and after.phase is not Phase.RUNNING:
            self._ending_s = now_s
        try:
            validate(self.rule, after)
        except BrokenInvariant as error:
            raise Violation("validate", str(error)) from error
        self._time(before, event, after, now_s)
        self._hears(before, event, after, effects, now_s)
        if after.fragments is not before.fragments:
            self._fragments(before, event, after, effects, now_s)
        if after.members is not before.members:
            self._members(before, event, after, now_s)
        if after.leases is not before.leases:
            self._leases(after)
        if effects:
            self._acts(before, event, after, effects, now_s)
        if isinstance(event, Merged) and self._is_merging(before, event):
            self._directions(before, event, after)
        if after.phase is not Phase.RUNNING:
            self._ending(before, event, after, effects, now_s)
        if (after.phase is Phase.FINISHED) != (before.phase is Phase.FINISHED):
            self._ends(after, effects)

    def _is_merging(self, state: State, event: Merged | Unsound) -> bool:
        round_ = state.fragments[event.fragment].round
        stage = Stage.MERGING if round_ is None else round_.stage
        return round_ is not None and round_.version == event.version and stage is Stage.MERGING

    # --- the clock --------------------------------------------------------------------------------

    def _time(self, before: State, event: Event, after: State, now_s: float) -> None:
        """t never falls, and is the K-th largest clock of the live learners; none is silent."""
        k = self.rule.min_quorum
        steps_count = self.rule.overlap > 0 and after.phase is Phase.RUNNING
        clocks: list[int] = []
        for m in after.members.values():
            if m.status is Status.LIVE:
                clocks.append(m.progress.steps + m.offset)
                since_s = m.advanced_s if steps_count else m.heard_s
                if now_s - since_s > max(SILENCE_S, SILENCE_STEPS * m.step_s) + ALMOST:
                    raise Violation("the silent are given up", f"{m} at {now_s}")
        clocks.sort(reverse=True)
        if not before.t <= after.t <= self.rule.steps:
            raise Violation("t never falls", f"{before.t} to {after.t} of {self.rule.steps}")
        if len(clocks) < k or before.phase is not Phase.RUNNING:
            if after.t != before.t:
                raise Violation("t is the K-th clock", f"{after.t}, of {len(clocks)} clocks")
        elif after.t != min(clocks[k - 1], self.rule.steps) and not isinstance(event, Stop):
            raise Violation("t is the K-th clock", f"{after.t}, the clocks are {clocks}")
        if after.t > before.t:
            for p, fragment in enumerate(after.fragments):
                if self._is_due(p, before, after) and fragment.round is None and not fragment.due:
                    raise Violation("what is due is done", f"f{p} at t = {after.t}")

    # --- what is heard ----------------------------------------------------------------------------

    def _hears(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], now_s: float
    ) -> None:
        """The dead are not heard, but answered; the living are answered with no Void."""
        match event:
            case Report(life) | Adopted(life) | LeaseWanted(life) | Left(life):
                speaks = True
            case Lost(life) | Missing(life):
                speaks = False
            case Arrived(contribution):
                life, speaks = contribution.id.life, False
            case _:
                return
        member = before.members.get(life.island)
        if member is not None and member.life == life and member.status in SPEAKING:
            if speaks and any(isinstance(e, Void) and e.life == life for e in effects):
                raise Violation("the living are heard", f"{event} was answered {effects}")
            if isinstance(event, Arrived):
                self._gate(before, event.contribution, after, effects, now_s)
            elif isinstance(event, LeaseWanted) and not any(
                isinstance(e, LeaseGranted) and e.life == life for e in effects
            ):
                raise Violation("everyone is answered", f"{event}: {effects}")
            return
        idle, _ = advance(self.rule, before, Tick(), now_s)
        if replace(idle, wake_s=None) != replace(after, wake_s=None):
            raise Violation("the dead are not heard", f"{event} changed something")
        if speaks and not any(isinstance(e, Void) and e.life == life for e in effects):
            raise Violation("everyone is answered", f"{event}: {effects}")

    def _gate(
        self,
        before: State,
        c: Contribution,
        after: State,
        effects: Sequence[Effect],
        now_s: float,
    ) -> None:
        """What is poisoned is refused; so often in a row, and the learner is in quarantine; if it
        was there before and has contributed nothing since, it is barred for longer each time."""
        p, life = c.id.fragment, c.id.life
        refused = next((e for e in effects if isinstance(e, Discard) and e.contribution is c), None)
        made = self._truth.made(c.id)
        poison = made.poison if made else None
        if refused is not None:
            if refused.fate is Fate.GATE:
                self._refusals[life] = self._refusals.get(life, 0) + 1
                needed = REFUSALS if self.rule.overlap > 0 else 1
                member = after.members[life.island]
                if (self._refusals[life] >= needed) != (member.status is Status.QUARANTINED):
                    words = f"{life} is {member.status} after {self._refusals[life]} refusals"
                    raise Violation("quarantine", words)
                if member.status is Status.QUARANTINED:
                    self._bars(before.members[life.island], member, now_s)
                healthy = made is not None and poison is None
                if healthy and refused.why.startswith(("numbers", "impossible", "layout")):
                    raise Violation("the healthy are merged", f"{c.id}: {refused.why}")
            return
        fragment = before.fragments[p]
        if c in fragment.inbox or (fragment.round and c in fragment.round.items):
            return  # said twice
        self._refusals[life] = 0
        member = after.members[life.island]
        if member.quarantines and not member.trial:
            raise Violation("who has contributed is trusted", f"{member}")
        if c.base > fragment.version or poison not in (None, *PASSING):
            raise Violation("the gate", f"{c} was admitted, poisoned by {poison}")
        if fragment.version.number - c.base.number > self.rule.max_staleness:
            raise Violation("the gate", f"{c} was admitted, stale onto {fragment.version}")
        healthy = [each for _, each in self._norms[p][-REMEMBERED:]]
        usual = sum(healthy) >= max(NORMS, MOST * len(healthy))
        if poison is Trouble.LOUD and usual:
            raise Violation("the gate", f"{c} was admitted, a thousand times too large")
        if not member.trial:
            self._norms[p].append((c.norm, poison is not Trouble.LOUD))

    def _bars(self, old: Member, new: Member, now_s: float) -> None:
        count, bar_s = old.quarantines + 1, 0.0
        for _ in range(count - 1):
            bar_s = min(2 * bar_s or BARRED_S, LONGEST_BARRED_S)
        if new.quarantines != count or abs(new.barred_s - now_s - bar_s) > ALMOST:
            raise Violation("bars grow", f"{new} at {now_s}, the {count}th is for {bar_s} s")

    # --- fragments --------------------------------------------------------------------------------

    def _fragments(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], now_s: float
    ) -> None:
        """Versions grow by one with each publication and never otherwise; rounds open when due."""
        if isinstance(event, Resume):
            self._resumed(before, event, after)
            return
        for p, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
            if new is old:
                continue
            if new.version != old.version:
                said = [e for e in effects if isinstance(e, Publish) and e.fragment == p]
                if (
                    len(said) != 1
                    or said[0].version != new.version
                    or said[0].previous != old.version
                    or new.version.number != old.version.number + 1 + self._void[p]
                ):
                    words = f"f{p} from {old.version} to {new.version}: {said}"
                    raise Violation("versions grow by one", words)
                self._void[p] = 0
                if old.round is not None and old.round.closed_s is not None:
                    self._pace[1] = _averaged(self._pace[1], now_s - old.round.closed_s)
            if isinstance(event, ShardLost) and p in event.fragments:
                self._is_away(p, before, after)
            round_ = new.round
            if round_ is None:
                continue
            if not isinstance(event, Unsound) and (
                old.round is None or old.round.version != round_.version
            ):
                self._opens(p, before, event, after)
            known = old.round is not None and old.round.quorum_since_s is not None
            if round_.quorum_since_s is not None and not known and not round_.last:
                self._pace[0] = _averaged(self._pace[0], now_s - round_.opened_s)
        for p, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
            if new is old or (round_ := new.round) is None:
                continue
            if round_.stage is Stage.OPEN:
                self._stays_open(p, after, round_, now_s)

    def _resumed(self, before: State, event: Resume, after: State) -> None:
        """No published version is lost; nobody is alive, no round is open that was not due."""
        for p, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
            if new.version < self._durable[p]:
                raise Violation("published is kept", f"f{p} from {old.version} to {new.version}")
            if new.inbox or new.asked:
                raise Violation("a new generation", f"f{p} remembers {new}")
        if any(m.status in SPEAKING for m in after.members.values()):
            raise Violation("a new generation", "somebody lived on")

    def _is_away(self, p: int, before: State, after: State) -> None:
        """Nothing is under way for a dead shard's fragment, and nothing of it counts as merged.

        A silence may be noticed in the same moment: what those had not handed in is lost as well.
        """
        old, new = before.fragments[p], after.fragments[p]
        items = old.round.items if old.round else ()
        gone = sum(c.tokens for c in (*old.inbox, *items))
        for life, account in before.ledger.accounts.items():
            if life not in after.ledger.accounts:
                gone += account.tokens - account.covered[p]
        if new.round or new.inbox or new.asked or (old.round is not None and not new.due):
            raise Violation("a dead shard has nothing", f"f{p}: {new}")
        if after.ledger.rows[p].lost - before.ledger.rows[p].lost != gone:
            raise Violation("what died is lost", f"f{p}: not {gone} tokens, of {items} and others")

    def _opens(self, p: int, before: State, event: Event, after: State) -> None:
        due = self._is_due(p, before, after)
        ends = before.phase is Phase.RUNNING and after.phase is not Phase.RUNNING
        if ends and not isinstance(event, Stop) and after.t != self.rule.steps:
            raise Violation("a run ends at T", f"at {after.t} of {self.rule.steps}, by {event}")
        if not (due or ends or before.fragments[p].due):
            raise Violation("only what is due is opened", f"f{p} at t = {after.t}")
        round_ = after.fragments[p].round
        if round_ and round_.last != (after.phase is not Phase.RUNNING):
            raise Violation("the last round", f"f{p} in {after.phase}: {round_}")

    def _stays_open(self, p: int, after: State, round_: Round, now_s: float) -> None:
        """A round with its quorum waits for somebody, and not past the grace."""
        fragment = after.fragments[p]
        if len(self._held(after, fragment, round_)) < self.rule.min_quorum:
            return
        if not self._waits_for(after, fragment, round_):
            raise Violation("rounds close", f"f{p} has all of {sorted(round_.arrived)} and waits")
        if round_.quorum_since_s is not None and not round_.last:
            over_s = round_.quorum_since_s + self._grace_s(after)
            if now_s > over_s + ALMOST:
                raise Violation("rounds close", f"f{p} waits at {now_s}, its grace was {over_s}")

    def _held(self, state: State, fragment: FragmentState, round_: Round) -> AbstractSet[Island]:
        """Who counts for the quorum; in a last round also whoever came too late before."""
        oldest = fragment.version.number - self.rule.max_staleness
        fresh = [c.id.life.island for c in fragment.inbox if c.base.number >= oldest]
        held = {island for island in fresh if not state.members[island].trial}
        return held if round_.last and round_.stage is Stage.OPEN else round_.arrived

    def _waits_for(
        self, state: State, fragment: FragmentState, round_: Round
    ) -> AbstractSet[Island]:
        """Who was asked and has not answered; a last round waits for those that drain as well."""
        drain = [i for i, m in state.members.items() if m.status is Status.DRAINING]
        return {*fragment.asked, *(drain if round_.last else ())} - round_.arrived

    def no_round_is_stuck(
        self, state: State, now_s: float, since_s: float, patience_s: float
    ) -> None:
        """Liveness, looked at from time to time: with K learners alive every round closes."""
        since_s = max(since_s, *(m.barred_s for m in state.members.values()), 0.0)
        for p, fragment in enumerate(state.fragments):
            if fragment.round is not None:
                opened_s = max(fragment.round.opened_s, since_s)
                if now_s - opened_s > patience_s:
                    words = f"f{p} is under way for {now_s - opened_s:.0f} s: {fragment}"
                    raise Violation("due rounds close", words)

    # --- members and leases -----------------------------------------------------------------------

    def _members(self, before: State, event: Event, after: State, now_s: float) -> None:
        """Nobody is given up without a reason, and nobody comes back from the dead."""
        moved = False
        for island, member in after.members.items():
            old = before.members.get(island)
            if old is member:
                continue
            if old is None or old.held is not member.held:
                moved = True
            if (
                old
                and old.quarantines != member.quarantines
                and not isinstance(event, Arrived | Merged | Unsound)
            ):
                raise Violation("quarantines are remembered", f"{old}, by {event} {member}")
            if member.status is Status.LIVE:
                if member.progress.steps == 0:
                    raise Violation("the live have stepped", f"{member}")
                self._live_since.setdefault(member.life, now_s)
            if old is None or old.life != member.life:
                if not isinstance(event, Join) or member.status is not Status.JOINING:
                    raise Violation("lives begin with a join", f"{member.life} by {event}")
            elif old.status is not member.status:
                self._changes(old, member, event, now_s)
        if moved:
            self._leases(after)

    def _changes(self, old: Member, new: Member, event: Event, now_s: float) -> None:
        if old.status not in SPEAKING:
            raise Violation("the dead stay dead", f"{old.life} from {old.status} to {new.status}")
        if new.status is not Status.LOST or isinstance(event, Resume):
            return
        if isinstance(event, Lost) and event.life == old.life:
            return
        if now_s - min(old.heard_s, old.advanced_s) < SILENCE_S - ALMOST:
            raise Violation("silence takes its time", f"{new.life}: {new.why} at {now_s}")

    def _leases(self, after: State) -> None:
        """Each piece of a region's corpus is in one hand there, or in the pool."""
        for region, pool in after.leases.items():
            numbers = [lease.number for lease in pool.returned]
            for member in after.members.values():
                if member.status in SPEAKING and member.region == region:
                    numbers += [lease.number for lease in member.held]
            if len(numbers) != len(set(numbers)):
                raise Violation("a lease is in one hand", f"{region}: {sorted(numbers)}")
            if numbers and max(numbers) >= pool.fresh:
                raise Violation("a lease is in one hand", f"{region}: {numbers} of {pool.fresh}")

    def _unsound(
        self, before: State, event: Unsound, after: State, effects: Sequence[Effect]
    ) -> None:
        """What is spoiled is dropped, or else the loudest one, and that counts as a refusal; the
        others are merged, or wait."""
        old, new = before.fragments[event.fragment].round, after.fragments[event.fragment]
        assert old is not None
        dropped = [e.contribution for e in effects if isinstance(e, Discard)]
        gone = {c.id for c in dropped}
        loudest = max(c.norm / (c.id.to_step - c.since_step) for c in old.items)
        if event.spoiled and gone != set(event.spoiled):
            raise Violation("what is spoiled is dropped", f"{dropped} of {event}")
        if not event.spoiled and [c.norm_per_step for c in dropped] != [loudest]:
            raise Violation("the loudest is dropped", f"{dropped} of {old.items}")
        kept = {c.id for c in old.items} - gone
        items = new.round.items if new.round else ()
        if not kept <= {c.id for c in (*items, *new.inbox)}:
            raise Violation("what is sound is kept", f"{new} of {old.items}")
        for life in [c.id.life for c in dropped]:
            member, needed = before.members[life.island], REFUSALS if self.rule.overlap > 0 else 1
            if member.life == life and member.status in SPEAKING:
                self._refusals[life] = count = self._refusals.get(life, 0) + 1
                if (count >= needed) != (after.members[life.island].status is Status.QUARANTINED):
                    raise Violation("quarantine", f"{life} after {count} refusals")

    def _directions(self, before: State, event: Merged, after: State) -> None:
        """Who points away from the others so many times in a row is quarantined, nobody else is,
        and what is on trial is never merged."""
        round_ = before.fragments[event.fragment].round
        assert round_ is not None
        lives = [c.id.life for c in (*round_.items, *round_.trial)]
        for c in round_.items:
            if self._trial.get(c.id.life.island):
                raise Violation("what is on trial is not merged", f"{c.id}: {self._trial}")
        said = dict(zip(lives, event.cosines, strict=False))  # of each life its last one
        merged = {c.id.life for c in round_.items}
        cosines = {life: x for life, x in said.items() if x is not None and life in merged}
        for life, cosine in said.items():
            others = sorted(x for other, x in cosines.items() if other.island != life.island)
            old, new = before.members[life.island], after.members[life.island]
            if cosine is None or len(others) < 2 or not event.measured or old.life != life:
                continue
            if old.status not in SPEAKING:
                continue
            middle = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2
            off = sorted(abs(x - middle) for x in others)
            spread = (off[(len(off) - 1) // 2] + off[len(off) // 2]) / 2
            low = cosine < -SIGMAS / event.measured**0.5 and cosine < middle - SIGMAS * spread
            if old.trial:
                left = AGAIN if low else self._trial.pop(life.island) - 1
                if left:
                    self._trial[life.island] = left
                if new.trial != left:
                    raise Violation("trials", f"{new}: {left} left")
                continue
            self._against[life] = count = self._against.get(life, 0) + 1 if low else 0
            everyone = [m for m in before.members.values() if m.status is Status.LIVE]
            living = [m for m in everyone if not m.trial and m.life.island not in self._trial]
            enough = len(living) >= 4 and len(living) - 1 >= self.rule.min_quorum
            must = count >= AGAINST and enough and len({m.region for m in living}) == 1
            if must != (new.status is Status.QUARANTINED) and len(merged) == len(cosines):
                raise Violation("direction", f"{life} is {new.status}, {count} times against")
            if new.status is Status.QUARANTINED:
                self._trial[life.island] = AGAIN

    # --- effects ----------------------------------------------------------------------------------

    def _acts(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], now_s: float
    ) -> None:
        """What the rules want done, each in its time, and none for the dead."""
        for effect in effects:
            match effect:
                case Ask(life, p, last):
                    self._lives(effect, after, life, Status.LIVE)
                    if (round_ := after.fragments[p].round) and round_.last != last:
                        raise Violation("the last round", f"{effect} in {round_}")
                    if after.fragments[p].asked.get(life.island) != life:
                        raise Violation("who is asked is waited for", f"{effect}")
                    if before.fragments[p].asked.get(life.island) == life and not (
                        isinstance(event, Missing | Arrived)
                    ):
                        raise Violation("nobody is asked twice", f"{effect}")
                    self._asks(p, before, after, life)
                case Granted(life):
                    if life.incarnation <= self._granted or not isinstance(event, Join):
                        raise Violation("incarnations grow", f"{effect} after {self._granted}")
                    if before.phase is not Phase.RUNNING or event.fingerprint != (
                        self.rule.fingerprint
                    ):
                        raise Violation("who may join", f"{event} in {before.phase}")
                    if effect.offset != before.t:
                        raise Violation("who joins is at t", f"{effect} at {before.t}")
                    if (old := before.members.get(life.island)) and now_s < old.barred_s:
                        raise Violation("the barred wait", f"{effect} at {now_s}, {old}")
                    for donor in effect.donors:
                        self._lives(effect, before, donor, Status.LIVE)
                        giver = before.members[donor.island]
                        if giver.refusals or giver.quarantines or donor.island == life.island:
                            raise Violation("the healthy give", f"{effect}, {giver}")
                    self._granted = life.incarnation
                case LeaseGranted(life) | Release(life):
                    self._lives(effect, before, life)  # it may be given up in the same moment
                case Shift(life):
                    self._lives(effect, after, life)
                case Merge():
                    self._merge(before, after, effect, event, now_s)
                case Store(p, version):
                    self._follows(effect, p, version, Merged, event, Merge)
                case Publish(p, version):
                    self._follows(effect, p, version, Stored, event, Store)
                    self._publish(after, effect, event)
                case Discard():
                    self._discard(after, effect)
                case Wake(at_s):
                    if at_s <= now_s:
                        raise Violation("alarms are for later", f"{effect} at {now_s}")
                case Void(life):
                    member = after.members.get(life.island)
                    if member and member.life == life and member.status in SPEAKING:
                        raise Violation("the living are heard", f"{effect}")
                case Refused():
                    self._refuses(before, effect, event, now_s)
                case Finish():
                    pass
        if isinstance(event, Join) and (
            sum(isinstance(effect, Granted | Refused) for effect in effects) != 1
        ):
            raise Violation("everyone is answered", f"{event}: {effects}")

    def _refuses(self, before: State, refused: Refused, event: Event, now_s: float) -> None:
        """Nobody is kept out without a reason, or for longer than it is barred."""
        if refused.retry_s is None:
            fits = isinstance(event, Join) and event.fingerprint == self.rule.fingerprint
            if before.phase is Phase.RUNNING and fits:
                raise Violation("who may join", f"{refused} in {before.phase}")
        elif abs(before.members[refused.island].barred_s - now_s - refused.retry_s) > ALMOST:
            raise Violation("the barred wait", f"{refused} at {now_s}")

    def _asks(self, p: Fragment, before: State, after: State, life: Life) -> None:
        """Each once in a round, and once more when it is due again."""
        round_ = after.fragments[p].round
        opened_s = round_.opened_s if round_ else math.nan
        known_s, lives = self._asked[p]
        if opened_s != known_s or self._is_due(p, before, after):
            lives = frozenset[Life]()
        if life in lives:
            raise Violation("nobody is asked twice", f"{life} for f{p}, opened at {opened_s}")
        self._asked[p] = (opened_s, lives | {life})

    def _is_due(self, p: int, before: State, after: State) -> bool:
        every, count = self.rule.schedule.every, self.rule.schedule.fragments
        first = p * every // count
        return any((t - first) % every == 0 for t in range(before.t + 1, after.t + 1))

    def _lives(
        self, effect: Effect, after: State, life: Life, status: Status | None = None
    ) -> None:
        member = after.members.get(life.island)
        fits = SPEAKING if status is None else (status,)
        if member is None or member.life != life or member.status not in fits:
            raise Violation("nothing is said to the dead", f"{effect}")

    def _follows(
        self,
        effect: Effect,
        p: Fragment,
        version: Version,
        answer: type[Merged] | type[Stored],
        event: Event,
        order: type[Effect],
    ) -> None:
        """Merged, then durable, then public; each once."""
        if (
            not isinstance(event, answer)
            or (event.fragment, event.version) != (p, version)
            or self._step.get((p, version)) is not order
        ):
            raise Violation("durable before published", f"{effect} after {event}")
        self._step[p, version] = type(effect)

    def _publish(self, after: State, publish: Publish, event: Event) -> None:
        p = publish.fragment
        for id_ in publish.merged:
            if (made := self._truth.made(id_)) is not None:
                self._windows[p].update(made.windows)
                if made.poison is Trouble.ROTTEN:
                    raise Violation("nothing unsound is published", f"{publish}")
        self._merged.update(publish.merged)
        if publish.merged != tuple(c.id for c in self._merges[p, publish.version]):
            raise Violation("what is merged is acknowledged", f"{publish}")
        alive = {m.life for m in after.members.values() if m.status in SPEAKING}
        if not alive <= set(publish.to) or len(publish.to) != len(set(publish.to)):
            raise Violation("everybody is told", f"{publish} to {alive}")
        if isinstance(event, Stored) and event.durable:
            self._durable[p] = publish.version
        self.rounds_of[p] += 1

    def _discard(self, after: State, discard: Discard) -> None:
        c, fragment = discard.contribution, after.fragments[discard.contribution.id.fragment]
        merging = fragment.round is not None and fragment.round.stage is Stage.MERGING
        items = fragment.round.items if fragment.round and merging else ()
        if c.reference in [other.reference for other in (*fragment.inbox, *items)]:
            raise Violation("what is needed is kept", f"{discard}")
        if discard.fate is Fate.STALE and (
            fragment.version.number - c.base.number <= self.rule.max_staleness
        ):
            raise Violation("only the stale is stale", f"{discard} at {fragment.version}")
        self._freed.add(c.reference)

    def _merge(self, before: State, after: State, merge: Merge, event: Event, now_s: float) -> None:
        """Over the quorum, in order, of nothing merged, freed or poisoned; each window once."""
        p, version = merge.fragment, merge.version
        contributions = tuple(item.contribution for item in merge.items)
        if (p, version) in self._merges:
            raise Violation("one merge per version", f"f{p} {version}")
        self._merges[p, version] = contributions
        self._step[p, version] = Merge
        islands = {c.id.life.island for c in contributions}
        if len(islands) < self.rule.min_quorum:
            raise Violation("the quorum is kept", f"{merge}")
        if (round_ := after.fragments[p].round) and round_.last != merge.last:
            raise Violation("the last round", f"{merge} in {round_}")
        keys = [(c.id.life.island, c.id.life.incarnation, c.id.from_step) for c in contributions]
        if keys != sorted(keys):
            raise Violation("merges are in order", f"{keys}")
        raw = [c.tokens**2 / (c.id.to_step - c.id.from_step) for c in contributions]
        for weight, item in zip(raw, merge.items, strict=True):
            if not math.isclose(weight / sum(raw), item.weight):
                raise Violation("weights are tokens^2/steps", f"{merge}")
        if not isinstance(event, Unsound):
            self._closes(p, after, now_s)
        for c in contributions:
            self._item(p, before.fragments[p].version, c)
        known = [made for c in contributions if (made := self._truth.made(c.id)) is not None]
        windows = [window for made in known for window in made.windows]
        if len(windows) != len(set(windows)) or len(contributions) != len(
            {c.id for c in contributions}
        ):
            raise Violation("a window is merged once", f"f{p} {version}: {windows}")

    def _item(self, p: Fragment, onto: Version, c: Contribution) -> None:
        if c.id in self._merged:
            raise Violation("nothing is merged twice", f"{c.id}")
        if c.reference in self._freed or c.id.fragment != p:
            raise Violation("what is merged is there", f"{c.id}")
        if c.base > onto or onto.number - c.base.number > self.rule.max_staleness:
            raise Violation("only the fresh is merged", f"{c.id} of {c.base} onto {onto}")
        if not math.isfinite(c.norm):
            raise Violation("the gate", f"{c} is merged")
        if (made := self._truth.made(c.id)) is None:
            return
        if made.poison not in (None, *PASSING):
            raise Violation("the gate", f"{c} is merged, poisoned by {made.poison}")
        if not self._windows[p].isdisjoint(made.windows):
            again = self._windows[p].intersection(made.windows)
            raise Violation("a window is merged once", f"f{p}: {again} of {c.id}")

    def _grace_s(self, after: State) -> float:
        """The grace window as docs/protocol.md has it, from what was seen here."""
        if self.rule.grace_s is not None:
            return self.rule.grace_s
        living = [m.step_s for m in after.members.values() if m.status is Status.LIVE]
        steps = sorted(step_s for step_s in living if step_s > 0)
        if not steps:
            return 0.0
        middle = (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2
        slowest_s = max(step_s for step_s in steps if step_s <= IN_PACE * middle)
        slack_s = self.rule.overlap * slowest_s - sum(s for s in self._pace if s is not None)
        return min(slowest_s, max(0.0, GAMMA * slack_s))

    def _closes(self, p: Fragment, after: State, now_s: float) -> None:
        """Not before the grace is over, unless all have delivered; and nobody starves."""
        fragment, round_ = after.fragments[p], after.fragments[p].round
        if round_ is None:
            raise Violation("what closes was open", f"f{p}")
        if len(round_.arrived) < self.rule.min_quorum and not round_.last:
            raise Violation("the quorum is kept", f"f{p}: {sorted(round_.arrived)} arrived")
        waits_for = self._waits_for(after, fragment, round_)
        since_s = round_.quorum_since_s
        over_s = math.inf if since_s is None else since_s + self._grace_s(after)
        if round_.last:
            over_s = max(over_s, self._waited_for_s(round_))
        if waits_for and now_s < over_s - ALMOST:
            words = f"f{p} at {now_s}, quorum since {since_s}: {sorted(waits_for)}"
            raise Violation("the grace is kept", words)
        lives = frozenset(c.id.life for c in (*round_.items, *round_.trial))
        live = frozenset(m.life for m in after.members.values() if m.status is Status.LIVE)
        seen = Seen(round_.opened_s, now_s, lives, live)
        last, self._last[p] = self._last[p], seen
        if last is None or self.rule.max_staleness < STALENESS_OF_PACE:
            return
        self.pace_judged += len(last.live & live)
        for life in sorted(last.live & live - last.lives - lives):
            since_s = self._live_since.get(life, math.inf)
            if since_s <= last.opened_s and not self._truth.excused(life, last.opened_s, now_s):
                words = f"{life} is in neither of two merges of f{p}: {last}, {seen}"
                raise Violation("nobody starves", words)

    def _ending(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], now_s: float
    ) -> None:
        """Each fragment has a last round; it is merged, or was given up under the quorum when there
        was nobody to wait for, or nobody who could be waited for any longer."""
        live = [m.life for m in after.members.values() if m.status is Status.LIVE]
        for p, (old, new) in enumerate(zip(before.fragments, after.fragments, strict=True)):
            if new.round and new.round.stage is Stage.OPEN:
                self._does_not_wait_for_ever(p, after, new, new.round, now_s)
            if self._last_rounds[p] or new.round or new.due:
                continue
            self._last_rounds[p] = True
            round_ = None if isinstance(event, Resume) else old.round
            if round_ is None or not round_.last:
                if live:
                    raise Violation("the last round", f"f{p} has none, though there are {live}")
            elif round_.stage is Stage.OPEN:
                held = self._held(after, new, round_)
                waits_for = new.asked.keys() & {life.island for life in live}
                if len(held) >= self.rule.min_quorum:
                    raise Violation("the last round", f"f{p} was given up with {sorted(held)}")
                if waits_for and now_s < self._waited_for_s(round_) - ALMOST:
                    words = f"f{p} was given up at {now_s} without {sorted(waits_for)}: {round_}"
                    raise Violation("the last round", words)
            elif not any(isinstance(e, Publish) and e.fragment == p for e in effects):
                raise Violation("the last round", f"f{p} was merged, and is not public")

    def _does_not_wait_for_ever(
        self, p: int, after: State, fragment: FragmentState, round_: Round, now_s: float
    ) -> None:
        """... for one that is stuck, nor for nobody; with its quorum a round that was under way has
        its usual grace."""
        with_quorum = len(self._held(after, fragment, round_)) >= self.rule.min_quorum
        if with_quorum and not round_.last:
            return
        if not self._waits_for(after, fragment, round_):
            raise Violation("rounds close", f"f{p} waits for nobody: {round_}")
        steps_s = [m.step_s for m in after.members.values() if m.status is Status.LIVE]
        quorum_s, count = after.pace.quorum_s, self.rule.schedule.fragments
        handed_in_s = LEARNT_S if quorum_s is None else count * quorum_s
        over_s = max(round_.opened_s, self._ending_s) + handed_in_s
        over_s += max(SILENCE_S, IN_PACE * max(steps_s, default=0.0))
        if with_quorum and round_.quorum_since_s is not None:
            over_s = max(over_s, round_.quorum_since_s + (self.rule.grace_s or 0.0))
        if now_s > over_s + ALMOST:
            raise Violation("rounds close", f"f{p} waits at {now_s}, the end of it was {over_s}")

    def _waited_for_s(self, round_: Round) -> float:
        """Until then at least a last round waits for whoever was asked."""
        return max(round_.opened_s, self._ending_s) + SILENCE_S

    def _ends(self, after: State, effects: Sequence[Effect]) -> None:
        """A run ends once, with nothing under way."""
        if after.phase is not Phase.FINISHED:
            raise Violation("a run ends once", f"{after.phase}")
        if sum(isinstance(effect, Finish) for effect in effects) != 1:
            raise Violation("a run ends once", f"{effects}")
        if any(fragment.round or fragment.due for fragment in after.fragments):
            raise Violation("nothing is left undone", f"{after.fragments}")


def _averaged(known: float | None, sample: float) -> float:
    return sample if known is None else (1 - NEWEST) * known + NEWEST * sample
