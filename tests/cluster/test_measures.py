"""Tests of a run's figures against small histories that can be added up by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.status import RunStatus
from cluster.syncer.measures import Measures
from coordinator import ledger
from coordinator.advance import advance
from coordinator.codec import Wire
from coordinator.errors import RunFailed
from coordinator.frozen import replace
from coordinator.protocol import (
    Adopted,
    Arrived,
    Effect,
    Event,
    Fragment,
    Granted,
    Island,
    Join,
    Lease,
    Life,
    Lost,
    Merged,
    Progress,
    Report,
    Resume,
    Stop,
    Stored,
    Version,
    Vitals,
)
from coordinator.state import State, initial
from tests.coordinator.given import LAYOUT, contribution, rule

A, B = Island("a"), Island("b")
SIZES = (30, 10)


class Told:
    """The rules, and measures that record every event of them."""

    def __init__(self, began_s: float = 0.0, **rules: Any) -> None:
        usual: dict[str, Any] = {"fragments": 2, "every": 1000, "grace_s": 0.0}
        self.rule = rule(**usual | rules)
        self.state: State = initial(self.rule)
        self.measures = Measures("r", {A: "g", B: "g"}, SIZES, Wire.BF16, now_s=began_s)
        self.reads: dict[Life, Lease] = {}  # the first lease that was granted to each life

    def say(self, now_s: float, event: Event) -> tuple[Effect, ...]:
        before = self.state
        self.state, effects = advance(self.rule, before, event, now_s)
        self.measures.saw(before, event, self.state, effects, now_s)
        return effects

    def join(self, now_s: float, island: Island) -> Life:
        (granted,) = (
            e for e in self.say(now_s, Join(island, "g", LAYOUT)) if isinstance(e, Granted)
        )
        self.reads[granted.life] = granted.leases[0]
        return granted.life

    def progress(self, life: Life, steps: int) -> Progress:
        """Return the progress after `steps` steps that each read one window of the first lease."""
        number, start = self.reads[life].number, self.reads[life].start
        return Progress(steps, 100 * steps, Lease(number, start + steps))

    def report(self, now_s: float, life: Life, steps: int, *, step_s: float = 1.0) -> None:
        self.say(now_s, Report(life, self.progress(life, steps), step_s))

    def arrive(self, now_s: float, life: Life, start: int, stop: int, **more: Any) -> None:
        progress = self.progress(life, stop)
        self.say(now_s, Arrived(contribution(life, 0, (start, stop), progress=progress, **more)))

    def adopt(self, now_s: float, life: Life, number: int, steps: int) -> None:
        progress = self.progress(life, steps)
        self.say(now_s, Adopted(life, Fragment(0), Version(0, number), steps, 0, progress))

    def merge(self, now_s: float, number: int) -> None:
        """Finish the round that is merging: the shard has merged it, and it is stored."""
        self.say(now_s, Merged(Fragment(0), Version(0, number)))
        self.say(now_s, Stored(Fragment(0), Version(0, number), durable=True))

    def summary(self, now_s: float) -> dict[str, Any]:
        return self.measures.summary(self.state, now_s)

    def hopeless(self) -> RunFailed | None:
        return self.measures.hopeless(self.state.phase)

    def status(self, now_s: float) -> RunStatus:
        return self.measures.status(self.rule, self.state, now_s)


# --- uptime ---------------------------------------------------------------------------------------


def test_uptime_counts_from_first_step_to_stop() -> None:
    """The time before the first step and the time after the stop do not count."""
    told = Told()
    a = told.join(20, A)
    for step in range(1, 11):
        told.report(30 + step, a, step)
    told.say(40, Stop("enough"))
    assert told.summary(60)["uptime"] == 1.0


def test_unusually_long_step_counts_only_in_part() -> None:
    told = Told()
    a = told.join(0, A)
    for step in range(1, 11):
        told.report(step, a, step)  # up from 0 to 10 s
    told.report(40, a, 11)  # one step of 1 s and the time of two more count
    told.say(40, Stop("enough"))
    assert told.summary(40)["uptime"] == pytest.approx((10 + 3) / 40)


def test_run_is_up_while_any_learner_advances() -> None:
    told = Told()
    a, b = told.join(0, A), told.join(0, B)
    for step in range(1, 11):
        told.report(step, a, step)
    for step in range(1, 11):
        told.report(9.5 + 3 * step, b, step, step_s=3)  # from 9.5 to 39.5 s
    told.report(40, a, 11)
    told.say(40, Stop("enough"))
    assert told.summary(40)["uptime"] == 1.0


def test_simultaneous_progress_counts_once() -> None:
    told = Told()
    a, b = told.join(0, A), told.join(0, B)
    for step in range(1, 6):
        told.report(step, a, step)
        told.report(step + 0.5, b, step)
    told.say(11, Stop("enough"))
    assert told.summary(11)["uptime"] == pytest.approx(5.5 / 11)


def test_run_without_steps_was_not_up() -> None:
    told = Told()
    told.join(0, A)
    told.say(9, Stop("enough"))
    assert told.summary(9)["uptime"] == 0.0
    assert told.summary(9)["goodput"] == 0.0


# --- goodput --------------------------------------------------------------------------------------


def test_goodput_is_computing_time_over_all_time_of_all_islands() -> None:
    told = Told(began_s=100)
    first, b = told.join(101, A), told.join(101, B)
    told.measures.heard(first, Vitals(2.0, computing_s=1.0))
    told.measures.heard(first, Vitals(2.0, computing_s=3.0))
    told.measures.heard(b, Vitals(2.0, computing_s=8.0, idle_s=5.0))
    told.say(105, Lost(first, "killed"))
    second = told.join(106, A)
    told.measures.heard(second, Vitals(2.0, computing_s=2.0))
    assert told.summary(110)["goodput"] == pytest.approx((3 + 8 + 2) / (2 * 10))


# --- overlap ------------------------------------------------------------------------------------


def test_overlap_is_the_steps_from_hand_in_to_adoption() -> None:
    told = Told(every=4)
    a = told.join(0, A)
    assert told.summary(1)["effective_overlap"] is None
    told.report(4, a, 4)
    told.arrive(4.1, a, 0, 4)
    told.merge(4.2, 1)
    told.adopt(6, a, 1, 6)
    assert told.summary(6)["effective_overlap"] == 2
    told.report(8, a, 8)
    told.arrive(8.1, a, 4, 8)
    told.merge(8.2, 2)
    told.adopt(9, a, 2, 9)
    assert told.summary(9)["effective_overlap"] == 1.5
    told.adopt(12, a, 2, 12)  # nothing was handed in since
    told.report(13, a, 13)
    told.arrive(13.1, a, 8, 13)
    b = told.join(14, A)
    told.adopt(20, b, 3, 6)  # the hand-in was not this life's
    assert told.summary(20)["effective_overlap"] == 1.5


# --- faults and recovery --------------------------------------------------------------------------


def test_recovery_lasts_from_the_fault_to_the_next_accepted_work() -> None:
    told = Told(every=4)
    first = told.join(0, A)
    told.report(4, first, 4)
    told.measures.fault(A, now_s=5)
    told.arrive(5.1, first, 0, 4)  # it was on its way already
    told.merge(5.2, 1)
    told.say(6, Lost(first, "killed"))
    second = told.join(10, A)
    told.report(14, second, 4)
    told.arrive(14.5, second, 0, 3, norm=float("nan"))  # refused, so not a recovery
    told.arrive(17, second, 3, 4)
    told.report(20, second, 8)
    told.arrive(21, second, 4, 8)
    summary = told.summary(30)
    assert summary["faults"] == 1
    assert summary["recovery_s"] == [12]
    assert summary["rejected_contributions"] == 1


def test_island_that_never_comes_back_has_no_recovery() -> None:
    told = Told()
    told.report(4, told.join(0, A), 4)
    told.measures.fault(A, now_s=5)
    summary = told.summary(30)
    assert (summary["faults"], summary["recovery_s"]) == (1, [])


def test_run_that_refuses_all_islands_is_hopeless() -> None:
    """This happens after a restart of the syncer from other source than the islands'."""
    told = Told()
    told.join(0, A)
    told.say(1, Join(B, "g", "another layout"))
    assert told.hopeless() is None
    told.measures.refused(A, "its source is x, the syncer's is y")
    failure = told.hopeless()
    assert failure is not None
    assert "its source is x" in str(failure)
    assert "another layout" in str(failure)
    told.join(2, B)
    assert told.hopeless() is None
    told.say(3, Stop("enough"))
    told.measures.refused(B, "the run is stopping")
    assert told.hopeless() is None, "whoever comes too late is refused, and rightly"


def test_run_that_refused_all_islands_can_be_resumed_with_new_processes() -> None:
    """The cause is mended, and the islands of the new owner have not asked yet."""
    told, owner = Told(), 1
    told.measures.owned(owner, 0)
    resume = Resume(1, tuple(each.version for each in told.state.fragments))

    def refuse_all() -> None:
        for island in (A, B):
            told.measures.refused(island, "its source is x, the syncer's is y")
        told.measures.held({A: "g", B: "g"}, 1)

    refuse_all()
    for before_owner in (True, False):  # a replay may count both in either order
        assert told.hopeless() is not None
        owner += 1
        told.measures.owned(owner, 1)
        if not before_owner:
            refuse_all()
        told.say(1, resume)
        told.measures.held({A: "g", B: "g"}, 2)
        assert told.hopeless() is None
        assert not any("source" in each["why"] for each in told.status(2)["islands"])
        refuse_all()
    told.measures.owned(owner, 3)
    told.say(3, replace(resume, generation=2))
    assert told.hopeless() is not None, "the same owner has the same processes"


@pytest.mark.parametrize("paused_s", [0.0, 259_200.0])
def test_pause_before_a_resume_is_no_time_of_the_run(paused_s: float) -> None:
    """The pause was once an alert that nothing is merged, and part of the time that is left."""
    told = Told(every=4, steps=64)
    told.measures.owned(1, 0)
    a, b = told.join(0, A), told.join(0, B)
    for life in (a, b):
        told.report(4, life, 4)
        told.arrive(4.5, life, 0, 4)
    told.merge(5, 1)
    told.measures.fault(A, 6)
    told.report(8, a, 8)
    told.report(8, b, 8)
    now_s = 10 + paused_s
    told.measures.owned(2, 8)
    told.report(8, a, 8)  # a replay may count an event of the same time after the change
    told.say(now_s, Resume(1, tuple(each.version for each in told.state.fragments)))
    status = told.status(now_s + 1)
    figures = status["figures"]
    assert figures is not None
    assert figures["merge_age_s"] == pytest.approx(11 - 5 - 2)
    assert status["left_s"] == pytest.approx((11 - 3 - 2) * (64 - 8) / 8)
    assert figures["uptime"] == pytest.approx(5 / 6, abs=1e-3)
    assert told.summary(now_s)["paused_s"] == 2 + paused_s
    told.say(now_s + 50, Resume(2, tuple(each.version for each in told.state.fragments)))
    assert told.summary(now_s)["paused_s"] == 2 + paused_s, "the owner is the same"


def test_first_restart_of_a_syncer_is_no_pause() -> None:
    told = Told()
    told.measures.owned(1, 0)
    told.join(3, A)
    told.say(500, Resume(1, tuple(each.version for each in told.state.fragments)))
    assert told.summary(500)["paused_s"] == 0.0


def test_island_that_left_gives_no_hope() -> None:
    told = Told()
    told.join(0, A)
    told.measures.refused(B, "another layout")
    assert told.hopeless() is None
    told.measures.held({B: "g"}, 1)
    failure = told.hopeless()
    assert failure is not None
    assert "another layout" in str(failure)
    told.measures.held({}, 2)
    assert told.hopeless() is None, "no learner is there yet"


# --- merges, bytes, tokens ------------------------------------------------------------------------


def with_three_merges() -> Told:
    """Return a run with merges at 5 s by a, at 9 s by a and b, and at 20 s by a.

    Island b was lost with its last two steps.
    """
    told = Told(every=4, grace_s=1.0)
    a, b = told.join(0, A), told.join(0, B)
    told.report(4, a, 4)
    told.arrive(4.5, a, 0, 4)
    told.merge(5, 1)
    told.report(6, b, 8)
    told.report(8, a, 8)
    told.arrive(8.5, b, 0, 8)
    told.arrive(8.6, a, 4, 8)
    told.merge(9, 2)
    told.report(10, b, 10)
    told.say(11, Lost(b, "killed"))
    told.report(18, a, 12)
    told.arrive(19, a, 8, 12)
    told.merge(20, 3)
    return told


def test_participants_and_longest_gap_between_merges() -> None:
    told = with_three_merges()
    summary = told.summary(30)
    assert summary["merges"] == 3
    assert summary["mean_participants"] == pytest.approx(4 / 3)
    assert summary["max_merge_gap_s"] == 11
    assert told.status(30)["participants"] == pytest.approx(4 / 3)
    assert told.status(30)["fragments"][0]["participants"] == ["a"]


def test_tokens_add_up_and_match_the_ledger() -> None:
    told = with_three_merges()
    summary, totals = told.summary(30), ledger.totals(told.state.ledger, SIZES)
    assert summary["tokens_trained"] == 2200 == totals.trained
    assert summary["tokens_trained"] == sum(
        summary[f"tokens_{fate}"] for fate in ("merged", "discarded", "lost", "outstanding")
    )
    assert summary["tokens_merged"] == 2000 * 30 // 40, "of the larger fragment alone"
    assert summary["tokens_lost"] == (200 * 30 + 1000 * 10) // 40


def test_bytes_per_trained_token() -> None:
    told = with_three_merges()
    published = 2 + 2 + 1  # learners, in each of the three merges
    assert told.summary(30)["up_bytes_per_token"] == pytest.approx(4 * 64 / 2200)
    assert told.summary(30)["down_bytes_per_token"] == pytest.approx(published * 30 * 2 / 2200)


# --- the status -----------------------------------------------------------------------------------


def test_status_is_plain_json() -> None:
    status = with_three_merges().status(30)
    assert json.loads(json.dumps(status)) == status


def test_age_of_the_first_merge_counts_from_the_first_step() -> None:
    """Without this, a run that merges nothing from its start has no alert."""
    told = Told(steps=100)
    a = told.join(0, A)

    def age_s(now_s: float) -> float | None:
        figures = told.status(now_s)["figures"]
        assert figures is not None
        return figures["merge_age_s"]

    assert age_s(5) is None
    told.report(11, a, 1)  # a step of one second
    assert age_s(40) == 30
    merged = with_three_merges()
    ages = [figures["merge_age_s"] for t in (30, 31) if (figures := merged.status(t)["figures"])]
    assert ages == [10, 11]


def test_states_of_an_island() -> None:
    told = Told(steps=100)
    starting, _ = told.status(0)["islands"]
    assert (starting["state"], starting["life"], starting["loss"]) == ("starting", 0, None)
    assert told.status(0)["phase"] == "starting"
    first = told.join(1, A)
    assert told.status(1)["islands"][0]["state"] == "joining"
    told.report(11, first, 10)
    told.measures.heard(first, Vitals(2.5))
    live = told.status(11)["islands"][0]
    assert (live["state"], live["steps"], live["loss"]) == ("live", 10, 2.5)
    assert (told.status(11)["phase"], told.status(11)["alive"]) == ("running", 1)
    told.say(12, Lost(first, "its process ended"))
    lost = told.status(12)["islands"][0]
    assert (lost["state"], lost["why"], lost["tokens_per_s"]) == ("lost", "its process ended", 0)
    told.report(23, told.join(13, A), 5)
    back = told.status(23)["islands"][0]
    assert (back["state"], back["life"], back["steps"]) == ("live", 2, 15)


def test_refused_island_shows_the_reason() -> None:
    told = Told()
    told.say(1, Join(A, "g", "another layout"))
    assert "another layout" in told.status(1)["islands"][0]["why"]
    told.join(2, A)
    assert "layout" not in told.status(2)["islands"][0]["why"]


def test_run_stopped_before_its_first_step_is_finished() -> None:
    """Without this, an early Ctrl-C would leave the user waiting forever."""
    told = Told()
    told.join(1, A)
    told.say(2, Stop("Ctrl-C"))
    assert told.status(2)["phase"] == "finished"
    assert told.summary(2)["uptime"] == 0.0


def test_time_left_follows_the_clock() -> None:
    told = Told(steps=100)
    a = told.join(0, A)
    assert told.status(5)["left_s"] is None
    for step in range(1, 26):
        told.report(9 + step, a, step)
    assert told.status(34)["left_s"] == pytest.approx(75)
    told.say(34, Stop("enough"))
    assert told.status(34)["left_s"] is None


def test_token_rate_counts_live_islands() -> None:
    told = Told()
    a, b = told.join(0, A), told.join(0, B)
    for step in range(1, 11):
        told.report(step, a, step)
        told.report(step / 2, b, step, step_s=0.5) if step > 8 else None
    assert told.status(10)["islands"][0]["tokens_per_s"] == pytest.approx(100)
    whole = told.status(10)["tokens_per_s"]
    told.say(10, Lost(a, "gone"))
    assert told.status(10)["tokens_per_s"] == pytest.approx(whole - 100)


def test_heldout_losses_are_kept_in_order() -> None:
    told = Told()
    told.measures.evaluated(0, 5.5)
    told.measures.evaluated(12, 4.5)
    assert told.status(1)["heldout"] == [(0, 5.5), (12, 4.5)]


def test_curve_has_one_point_for_each_step() -> None:
    """A run that waits for its islands is evaluated again and again."""
    told = Told()
    for t, loss in ((0, 5.5), (0, 5.5), (12, 4.75), (12, 4.5), (13, 4.25)):
        told.measures.evaluated(t, loss)
    assert told.status(1)["heldout"] == [(0, 5.5), (12, 4.5), (13, 4.25)]
