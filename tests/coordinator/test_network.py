"""Hypothesis plays the learners, the shard, and the network between them and the rules.

Messages are lost, duplicated, delayed and reordered. Processes crash, come back, and send messages
of lives that are over. Every invariant must hold after every event. At the end the network heals
with K learners alive, and every fragment must be merged again, with all of them taking part.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from coordinator import leases
from coordinator.advance import advance
from coordinator.membership import SPEAKING, live, speaking
from coordinator.protocol import (
    Adopted,
    Arrived,
    Ask,
    Contribution,
    ContributionId,
    Discard,
    Drain,
    Effect,
    Event,
    Fate,
    Finish,
    Fragment,
    Granted,
    Island,
    Join,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Lost,
    Merge,
    Merged,
    Missing,
    Progress,
    Publish,
    Reference,
    Release,
    Report,
    Stop,
    Store,
    Stored,
    Tick,
    Version,
    Void,
    Wake,
)
from coordinator.state import Phase, Rule, Stage, State, initial, validate
from tests.coordinator.given import LAYOUT
from tests.coordinator.given import rule as make_rule

ISLANDS = tuple(map(Island, "abcd"))
TOKENS = {island: 3 + i for i, island in enumerate(ISLANDS)}
"""Tokens of one step on each island; they differ, so that the test notices mixed-up tokens."""
LEASE_WINDOWS = 5
PATIENCE = 150
"""The turns of one second in which a healed network must do what is asked of it."""

picks = st.integers(0, 11)


@dataclass
class Learner:
    """One process: it assumes that its life is current until a message contradicts it."""

    life: Life
    leases: list[Lease]
    base: list[Version]
    since: list[int]  # for each fragment: the first step neither handed in nor overwritten
    steps: int = 0
    asked: list[Fragment] = field(default_factory=list)
    news: list[tuple[Fragment, Version]] = field(default_factory=list)
    draining: bool = False

    def windows(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return (lease, window) of the steps [start, stop)."""
        every = [(e.number, w) for e in self.leases for w in range(e.start, LEASE_WINDOWS)]
        return every[start:stop]

    @property
    def left(self) -> int:
        """The number of steps for which the learner still has data."""
        return sum(LEASE_WINDOWS - lease.start for lease in self.leases) - self.steps

    def progress(self, steps: int | None = None) -> Progress:
        steps = self.steps if steps is None else steps
        number, window = self.windows(0, steps)[-1] if steps else (self.leases[0].number, -1)
        start = window + 1 if steps else self.leases[0].start
        return Progress(steps, steps * TOKENS[self.life.island], Lease(number, start))


class Network(RuleBasedStateMachine):
    """The processes and messages around `advance`, and the invariants."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.wake_s = math.inf
        self.wire: list[Event] = []  # messages on their way to the syncer
        self.said: list[Event] = []  # all messages that the syncer has received
        self.learners: list[Learner] = []  # running processes, also those of lives that are over
        self.windows: dict[ContributionId, list[tuple[int, int]]] = {}
        self.merges: deque[Merge] = deque()  # the shard's work
        self.stores: deque[Store] = deque()
        self.merged_ids: set[ContributionId] = set()
        self.merged_windows: set[tuple[Fragment, int, int]] = set()
        self.merged_tokens: Counter[Fragment] = Counter()
        self.items: dict[tuple[Fragment, Version], tuple[Contribution, ...]] = {}
        self.freed: set[Reference] = set()
        self.participants: list[tuple[Fragment, set[Life]]] = []
        self.finished = False
        self.failed = False

    @initialize(
        k=st.integers(1, 3),
        p=st.integers(1, 3),
        every=st.integers(3, 5),
        grace_s=st.sampled_from([None, 0.0, 2.0]),
        overlap=st.sampled_from([0, 2]),
        staleness=st.integers(1, 3),
        steps=st.sampled_from([12, 10_000]),
    )
    def begins(
        self,
        k: int,
        p: int,
        every: int,
        grace_s: float | None,
        overlap: int,
        staleness: int,
        steps: int,
    ) -> None:
        self.rule: Rule = make_rule(
            every=every,
            fragments=p,
            steps=steps,
            quorum=k,
            grace_s=grace_s,
            overlap=overlap,
            max_staleness=staleness,
            lease_windows=LEASE_WINDOWS,
        )
        self.state: State = initial(self.rule)
        for island in ISLANDS[:k]:
            self.say(Join(island, "group", LAYOUT))

    # --- actions of the learners ---

    @rule(island=st.sampled_from(ISLANDS))
    def somebody_wants_to_join(self, island: Island) -> None:
        self.wire.append(Join(island, "group", LAYOUT))

    @precondition(lambda self: self.learners)
    @rule(pick=picks, steps=st.integers(1, 4))
    def a_learner_steps(self, pick: int, steps: int) -> None:
        self.step(self.someone(pick), steps)

    @rule(steps=st.integers(1, 3))
    def everybody_steps(self, steps: int) -> None:
        for learner in self.learners:
            self.step(learner, steps)

    @precondition(lambda self: any(learner.asked for learner in self.learners))
    @rule(pick=picks, norm=st.sampled_from([1.0, 1.0, 1.0, math.nan, math.inf]))
    def a_learner_hands_in(self, pick: int, norm: float) -> None:
        asked = [learner for learner in self.learners if learner.asked]
        self.hand_in(asked[pick % len(asked)], norm)

    @precondition(lambda self: any(learner.news for learner in self.learners))
    @rule(pick=picks, carry=st.booleans())
    def a_learner_adopts(self, pick: int, carry: bool) -> None:
        told = [learner for learner in self.learners if learner.news]
        self.adopt(told[pick % len(told)], carry)

    @precondition(lambda self: self.learners)
    @rule(pick=picks)
    def a_learner_wants_data(self, pick: int) -> None:
        self.wire.append(LeaseWanted(self.someone(pick).life))

    @precondition(lambda self: self.learners)
    @rule(pick=picks, noticed=st.booleans())
    def a_learner_crashes(self, pick: int, noticed: bool) -> None:
        self.crash(self.someone(pick), noticed)

    @rule(island=st.sampled_from(ISLANDS))
    def an_island_is_drained(self, island: Island) -> None:
        self.wire.append(Drain(island, "asked to"))

    @precondition(lambda self: any(learner.draining for learner in self.learners))
    @rule(pick=picks)
    def a_draining_learner_leaves(self, pick: int) -> None:
        draining = [learner for learner in self.learners if learner.draining]
        self.leave(draining[pick % len(draining)])

    # --- actions of the shard ---

    @precondition(lambda self: self.merges)
    @rule()
    def the_shard_merges(self) -> None:
        effect = self.merges.popleft()
        self.wire.append(Merged(effect.fragment, effect.version))

    @precondition(lambda self: self.stores)
    @rule(durable=st.booleans())
    def the_shard_stores(self, durable: bool) -> None:
        effect = self.stores.popleft()
        self.wire.append(Stored(effect.fragment, effect.version, durable))

    # --- actions of the network ---

    @precondition(lambda self: self.wire)
    @rule(pick=picks)
    def a_message_arrives_in_any_order(self, pick: int) -> None:
        self.say(self.wire.pop(pick % len(self.wire)))

    @rule()
    def everything_arrives(self) -> None:
        self.deliver()

    @precondition(lambda self: self.said)
    @rule(back=st.integers(1, 30))
    def an_old_message_comes_again(self, back: int) -> None:
        self.say(self.said[-min(back, len(self.said))])

    @precondition(lambda self: any(isinstance(event, Report) for event in self.wire))
    @rule()
    def reports_are_lost(self) -> None:
        self.wire = [event for event in self.wire if not isinstance(event, Report)]

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.wait(seconds)

    # --- the actions, without chance ---

    def someone(self, pick: int) -> Learner:
        return self.learners[pick % len(self.learners)]

    def step(self, learner: Learner, steps: int) -> None:
        if learner.draining or not (steps := min(steps, learner.left)):
            return
        learner.steps += steps
        self.wire.append(Report(learner.life, learner.progress(), step_s=0.1))

    def hand_in(self, learner: Learner, norm: float = 1.0) -> None:
        p = learner.asked.pop(0)
        handed = self.handed_in(learner, p, norm)
        self.wire.append(Arrived(handed) if handed else Missing(learner.life, p, "no new step"))

    def handed_in(self, learner: Learner, p: Fragment, norm: float = 1.0) -> Contribution | None:
        id_ = ContributionId(learner.life, p, learner.since[p], learner.steps)
        steps = id_.to_step - id_.from_step
        if steps == 0:
            return None
        learner.since[p] = learner.steps
        self.windows[id_] = learner.windows(id_.from_step, id_.to_step)
        tokens = steps * TOKENS[learner.life.island]
        where = Reference(str(id_))
        return Contribution(
            id=id_,
            base=learner.base[p],
            since_step=id_.from_step,
            tokens=tokens,
            fingerprint=LAYOUT,
            progress=learner.progress(),
            norm=norm * steps,
            bytes=64,
            reference=where,
        )

    def adopt(self, learner: Learner, carry: bool = False) -> None:
        p, version = learner.news.pop(0)
        if version <= learner.base[p]:
            return
        learner.base[p] = version
        start = learner.steps if carry else learner.since[p]
        tokens = (learner.steps - start) * TOKENS[learner.life.island]
        learner.since[p] = learner.steps if not carry else learner.since[p]
        self.wire.append(Adopted(learner.life, p, version, start, tokens, learner.progress()))

    def crash(self, learner: Learner, noticed: bool) -> None:
        self.learners.remove(learner)
        self.wire += [Missing(learner.life, p, "its learner died") for p in learner.asked]
        if noticed:
            self.wire.append(Lost(learner.life, "died"))

    def leave(self, learner: Learner) -> None:
        """Store everything that the learner has in the shard before it reports that it has left."""
        for p in map(Fragment, range(self.rule.schedule.fragments)):
            if handed := self.handed_in(learner, p):
                self.say(Arrived(handed))
        self.say(Left(learner.life, learner.progress()))
        self.learners = [other for other in self.learners if other is not learner]

    def deliver(self) -> None:
        while self.wire:
            self.say(self.wire.pop(0))

    def wait(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.wake_s <= until_s:
            self.now_s, self.wake_s = max(self.now_s, self.wake_s), math.inf
            self.say(Tick())
        self.now_s = until_s

    # --- the syncer's shell, and the invariants ---

    def say(self, event: Event) -> None:
        before = self.state
        self.said.append(event)
        self.failed = True  # until all checks below have passed
        self.state, effects = advance(self.rule, before, event, self.now_s)
        validate(self.rule, self.state)
        self.time_goes_on(before)
        self.versions_grow_one_by_one(before, effects)
        self.the_dead_are_not_heard(before, event)
        self.each_window_is_in_one_hand()
        for effect in effects:
            self.carry_out(effect)
        for p, row in enumerate(self.state.ledger.rows):
            assert row.merged == self.merged_tokens[Fragment(p)]
        self.failed = False

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Granted(life, _, versions, leases):
                since = [0] * len(versions)
                self.learners.append(Learner(life, list(leases), list(versions), since))
            case LeaseGranted(life, lease):
                for learner in self.of(life):
                    learner.leases.append(lease)
            case Void(life):
                self.learners = [other for other in self.learners if other.life != life]
            case Ask(life, p):
                for learner in self.of(life):
                    learner.asked.append(p)
                if not self.of(life):
                    self.wire.append(Missing(life, p, "no such process"))
            case Release(life):
                for learner in self.of(life):
                    learner.draining = True
            case Publish(p, version, _, to, _):
                for learner in self.learners:
                    if learner.life in to:
                        learner.news.append((p, version))
            case Merge():
                self.is_a_lawful_merge(effect)
                self.merges.append(effect)
            case Store(p, version):
                self.merged_tokens[p] += sum(c.tokens for c in self.items[p, version])
                self.stores.append(effect)
            case Discard(c, fate):
                held = self.state.fragments[c.id.fragment]
                assert fate is not Fate.STALE or c.base.number < held.version.number
                assert c.reference not in {other.reference for other in held.inbox}
                if held.round and held.round.stage is Stage.MERGING:
                    assert c.reference not in {other.reference for other in held.round.items}
                self.freed.add(c.reference)
            case Wake(at_s):
                assert at_s > self.now_s, "an alarm in the past would ring for ever"
                self.wake_s = at_s
            case Finish():
                assert not self.finished, "a run ends once"
                self.finished = True
            case _:
                pass

    def of(self, life: Life) -> list[Learner]:
        return [learner for learner in self.learners if learner.life == life]

    def is_a_lawful_merge(self, merge: Merge) -> None:
        """Check that a merge is lawful.

        It reaches the quorum, is the only one of its version, repeats no contribution that was
        merged or freed before, and takes contributions in order.
        """
        contributions = tuple(item.contribution for item in merge.items)
        assert (merge.fragment, merge.version) not in self.items
        self.items[merge.fragment, merge.version] = contributions
        self.participants.append((merge.fragment, {c.id.life for c in contributions}))
        assert len({c.id.life.island for c in contributions}) >= self.rule.min_quorum
        assert math.isclose(sum(item.weight for item in merge.items), 1.0)
        assert list(contributions) == sorted(contributions, key=lambda c: c.id)
        for c in contributions:
            assert c.id not in self.merged_ids
            assert c.reference not in self.freed
            assert c.id.fragment == merge.fragment
            assert math.isfinite(c.norm)
            assert 1 <= merge.version.number - c.base.number <= self.rule.max_staleness + 1
            self.merged_ids.add(c.id)
            for number, window in self.windows[c.id]:
                assert (merge.fragment, number, window) not in self.merged_windows
                self.merged_windows.add((merge.fragment, number, window))

    def time_goes_on(self, before: State) -> None:
        """Check that t never falls, and equals the K-th largest clock of the live learners.

        A learner that has leapt to the end of the run does not count until it reports again.
        """
        learners = live(self.state.members).values()
        clocks = sorted((m.clock for m in learners if not m.doubted), reverse=True)
        k = self.rule.min_quorum
        assert before.t <= self.state.t <= self.rule.steps
        if self.state.phase is Phase.RUNNING and len(clocks) >= k:
            reached = clocks[k - 1]
            doubted = any(m.doubted for m in learners)
            assert self.state.t == (max(before.t, reached) if doubted else reached)
        if len(clocks) < k:
            assert self.state.t == before.t

    def versions_grow_one_by_one(self, before: State, effects: tuple[Effect, ...]) -> None:
        published = {e.fragment: e for e in effects if isinstance(e, Publish)}
        for p, (old, new) in enumerate(zip(before.fragments, self.state.fragments, strict=True)):
            if publish := published.get(Fragment(p)):
                assert publish.previous == old.version
                assert publish.version == new.version
                assert new.version.number == old.version.number + 1
                assert set(publish.merged) == {
                    c.id for c in self.items[publish.fragment, publish.version]
                }
            else:
                assert new.version == old.version

    def the_dead_are_not_heard(self, before: State, event: Event) -> None:
        """Check that messages of a life that is over do no more than the passing of time."""
        match event:
            case Report(life) | Adopted(life) | Lost(life) | LeaseWanted(life) | Left(life):
                pass
            case Arrived(contribution):
                life = contribution.id.life
            case _:
                return
        if speaking(before.members, life) is None:
            after, _ = advance(self.rule, before, Tick(), self.now_s)
            assert replace(after, wake_s=None) == replace(self.state, wake_s=None)

    def each_window_is_in_one_hand(self) -> None:
        members = [m for m in self.state.members.values() if m.status in SPEAKING]
        pool = leases.pool_of(self.state.leases, None)
        numbers = [lease.number for m in members for lease in m.held]
        numbers += [lease.number for lease in pool.returned]
        assert len(numbers) == len(set(numbers))
        assert all(number < pool.fresh for number in numbers)

    # --- liveness at the end ---

    def teardown(self) -> None:
        if not hasattr(self, "state") or self.failed:
            return
        self.a_healed_network_merges_everything_again()
        self.a_stopped_run_ends()

    def turn(self) -> None:
        """Run one second in which every process does what is asked."""
        running = self.state.phase is Phase.RUNNING
        lives = {m.life for m in self.state.members.values() if m.status in SPEAKING}
        for learner in list(self.learners):
            if learner.life not in lives:
                self.learners.remove(learner)  # its life is over
            elif learner.draining:
                self.leave(learner)
        if running and len(self.learners) < self.rule.min_quorum:
            here = {learner.life.island for learner in self.learners}
            self.say(Join(next(i for i in ISLANDS if i not in here), "group", LAYOUT))
        for learner in list(self.learners):
            if learner.left <= LEASE_WINDOWS:
                self.wire.append(LeaseWanted(learner.life))
            self.step(learner, 1)
            while learner.asked:
                self.hand_in(learner)
            while learner.news:
                self.adopt(learner)
        while self.merges:
            self.the_shard_merges()
        while self.stores:
            self.the_shard_stores(durable=True)
        self.deliver()
        self.wait(1.0)

    def a_healed_network_merges_everything_again(self) -> None:
        """Check three more merges of each fragment: every live learner must take part in one."""
        for _ in range(PATIENCE):
            self.turn()
            if not any(f.round or f.due for f in self.state.fragments):
                break  # all earlier rounds are closed
        since = len(self.participants)
        for _ in range(PATIENCE):
            if self.state.phase is not Phase.RUNNING:
                return
            recent = self.participants[since:]
            fragments = map(Fragment, range(self.rule.schedule.fragments))
            if all(sum(p == q for q, _ in recent) >= 3 for p in fragments):
                break
            self.turn()
        else:
            raise AssertionError(f"due rounds do not close: {self.state}")
        if self.rule.max_staleness < 2 and not self.rule.grace_s:
            # A turn is longer than the slack, so only a fixed grace window waits: a straggler of
            # one round may be too stale for the next, again and again.
            return
        for learner in self.learners:
            for p in range(self.rule.schedule.fragments):
                assert any(learner.life in who for q, who in self.participants[since:] if q == p)

    def a_stopped_run_ends(self) -> None:
        self.say(Stop("the end of the test"))
        for _ in range(PATIENCE):
            if self.finished:
                break
            self.turn()
        assert self.finished, f"the run does not end: {self.state}"
        assert not any(f.round or f.due for f in self.state.fragments)


TestNetwork = Network.TestCase
TestNetwork.settings = settings(max_examples=60, stateful_step_count=50)
pytestmark = pytest.mark.timeout(600)  # Hypothesis shrinks a failure for up to 300 s
