"""Tests of the rules of a ring, event by event.

The rules decide which islands are in a ring, from which step it continues, and when all pause.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cluster.allreduce.records import come_back
from cluster.allreduce.ring import Ring, RingStage, Rules, advance
from cluster.allreduce.ring_messages import (
    START,
    Effect,
    Ended,
    Event,
    FinalStateLost,
    Form,
    Pause,
    RingDrain,
    RingFinish,
    RingMemberLost,
    RingMemberReady,
    RingRelease,
    RingResume,
    RingStop,
    SnapshotStored,
    StepsFinished,
    TrainingPosition,
)
from cluster.allreduce.saved_state import (
    RingMemory,
    RingState,
    load_memory,
    load_state,
    save_memory,
    save_state,
)
from cluster.allreduce.wire import WORDS, buckets_of, wire_bytes
from cluster.storage.folder import Folder
from cluster.syncer.measures import Measures
from coordinator.codec import Wire
from coordinator.protocol import Incarnation, Island, Life

SEED = random.randrange(2**32)


def life(island: str, incarnation: int = 1) -> Life:
    return Life(Island(island), Incarnation(incarnation))


A, B, C = life("a"), life("b"), life("c")


class Told:
    """A run of three islands, with the rules applied to each event."""

    def __init__(self, *, elastic: bool, steps: int = 100) -> None:
        self.rules, self.ring = Rules(elastic, 3, steps), Ring()

    def __call__(self, *events: Event) -> list[Effect]:
        found: list[Effect] = []
        for event in events:
            self.ring, effects = advance(self.rules, self.ring, event)
            found += effects
        return found

    def begun(self) -> Form:
        (form,) = self(RingMemberReady(A), RingMemberReady(B), RingMemberReady(C))
        assert isinstance(form, Form)
        return form


def held(step: int) -> TrainingPosition:
    return TrainingPosition(step, tokens=10 * step, windows=step)


@pytest.mark.parametrize("elastic", [False, True])
def test_run_begins_when_all_islands_are_ready(elastic: bool) -> None:
    told = Told(elastic=elastic)
    assert told(RingMemberReady(B), RingMemberReady(A)) == []
    (form,) = told(RingMemberReady(C))
    assert isinstance(form, Form)
    assert (form.ring, form.members, form.held, form.donor) == (1, (A, B, C), START, None)


def test_death_without_elasticity_takes_all_back_to_the_snapshot() -> None:
    told = Told(elastic=False)
    told.begun()
    told(StepsFinished(1, held(10)), SnapshotStored(held(10)), StepsFinished(1, held(17)))
    assert told(RingMemberLost(B, "killed")) == []
    assert told(RingMemberReady(A, held(17), 3), RingMemberReady(C, held(17), 3)) == [], (
        "two are not three"
    )
    again = life("b", 4)
    (form,) = told(RingMemberReady(again))
    assert isinstance(form, Form)
    assert (form.members, form.held, form.donor) == ((A, again, C), held(10), None)
    assert told.ring.lost == 70 + 6, "seven steps, and what broke off"
    assert told.ring.trained == 176


def test_elastic_ring_continues_after_a_death_and_pauses_for_a_rejoin() -> None:
    told = Told(elastic=True)
    told.begun()
    told(StepsFinished(1, held(17)), RingMemberLost(B, "killed"))
    assert told(RingMemberReady(A, held(17), 3)) == [], "the third has not noticed yet"
    (form,) = told(RingMemberReady(C, held(17), 3))
    assert isinstance(form, Form)
    assert (form.members, form.held, form.donor) == ((A, C), held(17), A)
    assert told.ring.lost == 6
    again = life("b", 4)
    (pause,) = told(RingMemberReady(again))
    assert pause == Pause(2, "b joins")
    assert told(StepsFinished(2, held(20)), RingMemberReady(A, held(20))) == []
    (form,) = told(RingMemberReady(C, held(20)))
    assert isinstance(form, Form)
    assert (form.members, form.held, form.donor) == ((A, again, C), held(20), A)


def test_member_that_is_one_step_ahead_becomes_the_donor() -> None:
    told = Told(elastic=True)
    told.begun()
    told(StepsFinished(1, held(17)), RingMemberLost(A, "killed"), RingMemberReady(B, held(17), 3))
    (form,) = told(RingMemberReady(C, held(18)))
    assert isinstance(form, Form)
    assert (form.held, form.donor) == (held(18), C)


def test_death_of_all_members_goes_back_to_the_snapshot() -> None:
    told = Told(elastic=True)
    told.begun()
    told(StepsFinished(1, held(17)), SnapshotStored(held(10)))
    told(RingMemberLost(A, "killed"), RingMemberLost(B, "killed"), RingMemberLost(C, "killed"))
    (form,) = told(RingMemberReady(life("c", 4)))
    assert isinstance(form, Form)
    assert (form.held, form.donor) == (held(10), None)
    assert told.ring.lost == 70


def test_drained_member_leaves_after_its_step_and_the_others_continue() -> None:
    told = Told(elastic=True)
    told.begun()
    assert told(RingDrain(Island("b"), "asked")) == [Pause(1, "b leaves")]
    told(RingMemberReady(A, held(5)), RingMemberReady(B, held(5)))
    released, form = told(RingMemberReady(C, held(5)))
    assert released == RingRelease(B, "drained")
    assert isinstance(form, Form)
    assert form.members == (A, C)


def test_member_with_the_last_step_gives_the_result() -> None:
    told = Told(elastic=False, steps=20)
    told.begun()
    told(StepsFinished(1, held(20)), RingMemberReady(A, held(20)), RingMemberReady(B, held(20)))
    assert told(RingMemberReady(C, held(20))) == [RingFinish(A)]
    assert told.ring.stage is RingStage.ENDING
    assert told(RingMemberLost(A, "killed")) == [], "the others wait until the result is there"
    assert told(Ended(held(20))) == [
        RingRelease(B, "the run is over"),
        RingRelease(C, "the run is over"),
    ]
    assert told.ring.stage is RingStage.OVER


def test_final_state_that_no_member_can_give_is_trained_again() -> None:
    told = Told(elastic=False, steps=20)
    told.begun()
    told(
        StepsFinished(1, held(20)),
        SnapshotStored(held(10)),
        *(RingMemberReady(each, held(20)) for each in (A, B, C)),
    )
    (form,) = told(FinalStateLost(held(20), "the object store is full"))
    assert isinstance(form, Form)
    assert (form.members, form.held, form.donor) == ((A, B, C), held(10), None)
    assert told.ring.lost == 100
    told(StepsFinished(2, held(20)), RingMemberReady(A, held(20)), RingMemberReady(B, held(20)))
    assert told(RingMemberReady(C, held(20))) == [RingFinish(A)]


def test_stopped_run_without_its_final_state_ends_with_the_snapshot() -> None:
    told = Told(elastic=True)
    told.begun()
    told(StepsFinished(1, held(12)), SnapshotStored(held(10)), RingStop("asked"))
    told(*(RingMemberReady(each, held(12)) for each in (A, B, C)))
    assert told(FinalStateLost(held(12), "its node died")) == [RingFinish(None)]
    told(Ended(held(10)))
    assert (told.ring.stage, told.ring.held, told.ring.lost) == (RingStage.OVER, held(10), 20)


@pytest.mark.parametrize("stage", [RingStage.ENDING, RingStage.OVER])
def test_conductor_restarted_at_the_end_decides_again_if_the_run_is_over(
    stage: RingStage,
) -> None:
    told = Told(elastic=True, steps=20)
    told.begun()
    told(StepsFinished(1, held(20)), *(RingMemberReady(each, held(20)) for each in (A, B, C)))
    told.ring = replace(told.ring, stage=stage, kept=held(20))
    assert told(RingResume(1)) == [RingFinish(None)]
    told.ring = replace(told.ring, stage=stage, kept=held(10))
    assert told(RingResume(2)) == [], "it was not durable: the rest must be trained again"
    (form,) = told(RingMemberReady(life("a", 9)))
    assert isinstance(form, Form)
    assert form.held == held(10)


def test_stop_ends_the_ring_and_then_the_run() -> None:
    told = Told(elastic=False)
    told.begun()
    assert told(RingStop("asked")) == [Pause(1, "asked")]
    told(RingMemberReady(A, held(6)), RingMemberReady(B, held(6)))
    assert told(RingMemberReady(C, held(6))) == [RingFinish(A)]


def test_restarted_conductor_waits_for_all_islands_to_join_again() -> None:
    told = Told(elastic=False)
    told.begun()
    told(StepsFinished(1, held(9)), SnapshotStored(held(5)), RingResume(1))
    assert (
        told(
            StepsFinished(1, held(12)), RingMemberReady(life("a", 4)), RingMemberReady(life("b", 5))
        )
        == []
    )
    (form,) = told(RingMemberReady(life("c", 6)))
    assert isinstance(form, Form)
    assert (form.ring, form.held, told.ring.lost) == (2, held(5), 40)


def test_snapshot_may_be_newer_than_the_conductors_memory() -> None:
    told = Told(elastic=True)
    told.begun()
    told(StepsFinished(1, held(9)))
    told.ring = replace(told.ring, kept=held(10))
    told(RingResume(1), RingMemberReady(life("a", 4)))
    assert (told.ring.held, told.ring.lost) == (held(10), 0)


@pytest.mark.parametrize("elastic", [False, True])
def test_run_ends_and_its_tokens_add_up_under_random_deaths(elastic: bool) -> None:
    """Members die, return, or lose a step that breaks off.

    A ring has one state, and no island is in two rings.
    """
    for number in range(200):
        print(f"seed {SEED}/{number}")
        rng = random.Random(f"{SEED}/{number}")
        told, alive, lives = Told(elastic=elastic, steps=30), dict[str, Life](), 0
        has: dict[Life, TrainingPosition | None] = {}
        trained = kept = 0
        effects: list[Effect] = []
        for moment in range(2000):
            if told.ring.stage is RingStage.OVER:
                break
            effects, turning = [], told.ring.turning
            missing = sorted({"a", "b", "c"} - alive.keys())
            quiet = moment > 1500
            if missing and rng.random() < 0.3:
                lives += 1
                alive[missing[0]] = who = life(missing[0], lives)
                has[who] = None
                effects = told(RingMemberReady(who))
            elif turning and rng.random() < 0.1 and not quiet:
                victim = rng.choice(turning)
                del alive[victim.island]
                effects = told(RingMemberLost(victim, "killed"))
                for each in turning:
                    if each != victim:
                        trained += 7
                        effects += told(RingMemberReady(each, has[each], 7))
            elif turning and told.ring.stage in (RingStage.TURNING, RingStage.PAUSING):
                one = has[turning[0]]
                assert one is not None
                assert all(has[each] == one for each in turning), "one state in a ring"
                now = TrainingPosition(
                    one.step + 1, one.tokens + 10 * len(turning), one.windows + 1
                )
                trained += 10 * len(turning)
                pausing = told.ring.stage is RingStage.PAUSING or now.step >= 30
                for each in turning:
                    has[each] = now
                effects = told(StepsFinished(told.ring.ring, now))
                if rng.random() < 0.2:
                    kept, _ = now.step, told(SnapshotStored(now))
                if pausing:
                    for each in turning:
                        effects += told(RingMemberReady(each, now))
            for effect in effects:
                if isinstance(effect, Form):
                    assert elastic or len(effect.members) == 3
                    assert effect.donor is None or has[effect.donor] == effect.held
                    for each in effect.members:
                        has[each] = effect.held
            if any(isinstance(effect, RingFinish) for effect in effects):
                told(Ended(told.ring.held))
            assert told.ring.trained == trained
            assert 0 <= told.ring.lost <= trained
        assert told.ring.stage is RingStage.OVER
        assert told.ring.held.step == 30
        assert kept <= 30


def test_conductors_memory_survives_a_round_trip(tmp_path: Path) -> None:
    """Figures that are not known yet are not numbers; they survive, too."""
    told = Told(elastic=True)
    told.begun()
    told(StepsFinished(1, held(9)), RingDrain(Island("b"), "asked"), SnapshotStored(held(5)))
    measures = Measures("r", {Island("a"): "a"}, [4], Wire.F32, now_s=0.0)
    memory = RingMemory(told.ring, 3.0, measures.memory(), lives=3, events=7)
    save_memory(Folder(tmp_path), memory)
    found = load_memory(Folder(tmp_path))
    assert found is not None
    assert (found.ring, found.now_s, found.lives, found.events) == (told.ring, 3.0, 3, 7)
    Measures("r", {}, [4], Wire.F32, now_s=0.0).remember(found.measures)


def test_snapshot_is_read_back_and_old_ones_are_deleted(tmp_path: Path) -> None:
    depot = Folder(tmp_path)
    assert load_state(depot) is None
    rng = np.random.default_rng(SEED)
    for step in (0, 25, 50):
        params = [rng.normal(size=(3, 2)).astype(np.float32), np.zeros(5, np.float32)]
        moments = None if step == 0 else [np.full((), step, np.int32), params[0] + 1]
        save_state(depot, kept := RingState(held(step), params, moments), keep=2)
    found = load_state(depot)
    assert found is not None
    assert found.held == kept.held
    assert found.moments is not None
    assert kept.moments is not None
    for mine, wanted in zip(
        (*found.params, *found.moments), (*kept.params, *kept.moments), strict=True
    ):
        np.testing.assert_array_equal(mine, wanted)
    assert len(depot.names("ring")) == 2


def test_gradients_travel_in_buckets_from_last_leaf_to_first() -> None:
    assert buckets_of([10, 3, 4, 20, 1], limit=8) == [[4], [3], [2, 1], [0]]
    assert sorted(i for each in buckets_of([5] * 40, limit=17) for i in each) == [*range(40)]


def test_ring_sends_twice_the_gradients_without_its_own_share() -> None:
    gradients, words = 4 * 1000, 4 * WORDS
    assert wire_bytes([1000], 1, Wire.F32) == 0
    assert wire_bytes([1000], 4, Wire.F32) == 2 * 3 * (gradients + words) // 4
    assert wire_bytes([999], 4, Wire.BF16) == 2 * 3 * (gradients // 2 + words) // 4


def test_snapshot_without_a_memory_is_a_restart() -> None:
    assert come_back(None, RingState(START, [], None)) == (Ring(), None), "the run begins"
    ring, resume = come_back(None, RingState(held(25), [], None))
    assert (ring.kept, resume) == (held(25), RingResume(1))
