"""Tests that a run's figures are the same after its syncer died and came back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.failures import Failure, Reason, Unjudged
from cluster.storage.folder import Folder
from cluster.storage.state_history import ReplayedEvent
from cluster.syncer.clock import Clock
from cluster.syncer.journal import NOTES, VITALS, Notes, read_notes, retell
from cluster.syncer.measures import Measures
from cluster.syncer.report import island_hours
from coordinator.advance import advance
from coordinator.codec import Wire
from coordinator.protocol import (
    Arrived,
    Effect,
    Event,
    Fragment,
    Granted,
    Incarnation,
    Island,
    Join,
    Lease,
    Life,
    Lost,
    Merged,
    Progress,
    Report,
    Stored,
    Version,
    Vitals,
)
from coordinator.state import initial
from tests.coordinator.given import LAYOUT, contribution, rule

A, B = Island("a"), Island("b")


def measures_from(began_s: float) -> Measures:
    return Measures("r", {A: "g", B: "g"}, [30], Wire.BF16, now_s=began_s)


class Story:
    """A recorded run in which one island trains, dies by a fault and comes back."""

    def __init__(self, run_dir: Path) -> None:
        self.now_s = 10.0
        self.rule = rule(every=4, grace_s=0.0)
        self.state = initial(self.rule)
        self.measures = measures_from(self.now_s)
        self.notes = Notes(Folder(run_dir), self.measures, lambda: self.now_s)
        self.heard: list[ReplayedEvent] = []

    def say(self, event: Event) -> tuple[Effect, ...]:
        before = self.state
        self.state, effects = advance(self.rule, before, event, self.now_s)
        self.heard.append(ReplayedEvent(before, event, self.state, effects, self.now_s))
        self.measures.saw(*self.heard[-1])
        return effects

    def lives(self, steps: int) -> Life:
        """Play a life of `steps` steps of 1 s, half of it computing, with a merge every 4 steps."""
        (granted,) = (e for e in self.say(Join(A, "g", LAYOUT)) if isinstance(e, Granted))
        life, (first, *_) = granted.life, granted.leases
        for step in range(1, steps + 1):
            self.now_s += 1.0
            metrics = (("accuracy", step / 10),)
            vitals = Vitals(5.0 - step / 10, computing_s=step / 2, metrics=metrics)
            lease = Lease(first.number, first.start + step)
            progress = Progress(step, 100 * step, lease)
            self.say(Report(life, progress, step_s=1.0))
            self.measures.heard(life, vitals)
            self.notes.vitals(life, vitals)
            if step % 4 == 0:
                self.say(Arrived(contribution(life, 0, (step - 4, step), progress=progress)))
                number = self.state.fragments[0].version.number + 1
                self.say(Merged(Fragment(0), Version(0, number)))
                self.say(Stored(Fragment(0), Version(0, number), durable=True))
        return life


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    told = Story(tmp_path)
    first = told.lives(9)
    told.now_s += 0.5
    told.notes.fault(A)
    told.notes.evaluated(9, 4.25)
    told.notes.held({A: "g", B: "g"})
    told.now_s += 3
    told.say(Lost(first, "its process ended"))
    told.notes.failed(first, Failure(Reason.HAND_IN, "RuntimeError in hand_in"))
    told.notes.failed(Life(B, Incarnation(9)), Failure(Reason.STORE, "no room", ends=False))
    told.notes.failed(None, Failure(Reason.STORE, "no room to publish", ends=False))
    told.notes.unjudged(Unjudged.HUNG)
    told.now_s += 4
    told.lives(9)
    told.notes.flush()
    yield told
    told.notes.close()


def figures(story: Story, measures: Measures) -> dict[str, Any]:
    told = measures.status(story.rule, story.state, story.now_s)
    told["islands"] = [{**each, "loss": None} for each in told["islands"]]
    assert told["figures"] is not None
    told["figures"]["goodput"] = 0.0  # it is in the summary too, where it is compared
    return {**measures.summary(story.state, story.now_s), **told}


def test_replayed_measures_equal_the_originals(story: Story, tmp_path: Path) -> None:
    notes = read_notes(Folder(tmp_path))
    again = measures_from(notes[0].now_s)
    last = retell(again, story.heard, notes)
    assert last is not None
    assert last.after == story.state
    before, after = figures(story, story.measures), figures(story, again)
    assert before["failures"] == {"hand_in": 1, "store": 2}
    assert before["unjudged"] == {"hung": 1}
    assert before["islands"][1]["why"] == "its process starts, after no room"
    assert before["recovery_s"] == [11.0]
    assert before["max_merge_gap_s"] == 12.5
    assert 0 < before["uptime"] < 1
    assert before["goodput"] == pytest.approx((4.5 + 4.5) / (2 * (story.now_s - 10.0)))
    assert after.pop("goodput") == pytest.approx(before.pop("goodput"), rel=0.15), "of 2 s less"
    assert after == before


def test_last_vitals_of_a_life_are_kept_when_the_next_one_reports(
    story: Story, tmp_path: Path
) -> None:
    said = [note.what for note in read_notes(Folder(tmp_path)) if note.kind == "vitals"]
    kept = [(life, vitals["computing_s"]) for life, vitals in said]
    assert [computing_s for life, computing_s in kept if life == ["a", 1]][-1] == 4.5
    assert len(kept) < 18, "not those of every step"


def test_torn_lines_and_unknown_notes_are_skipped(story: Story, tmp_path: Path) -> None:
    whole = read_notes(Folder(tmp_path))
    with (tmp_path / NOTES).open("a") as file:
        file.write('[99.0, "evaluated", [1')  # the syncer died here
    story.now_s += 1
    Notes(Folder(tmp_path), story.measures, lambda: story.now_s).close()
    with (tmp_path / NOTES).open("a") as file:
        file.write('[99.0, "whatever", []]\n')
    notes = read_notes(Folder(tmp_path))
    assert notes[: len(whole)] == whole
    assert [note.kind for note in notes[len(whole) :]] == ["vitals", "began", "whatever"]
    again = measures_from(notes[0].now_s)
    retell(again, story.heard, notes)
    assert again.summary(story.state, story.now_s)["faults"] == 1


@pytest.mark.parametrize(
    "line",
    [
        '[99.0, "failed", [null, "a reason of a later version", "why"]]',
        '[99.0, "vitals", [["a", 1], {"loss": 1.0, "of a later version": 2}]]',
        '[99.0, "held", [3]]',
        '["99.0", "fault", ["a"]]',
        '[NaN, "fault", ["a"]]',
        '[99.0, "fault", "a"]',
        "[99.0]",
        "7",
    ],
)
def test_malformed_note_is_skipped(story: Story, tmp_path: Path, line: str) -> None:
    with (tmp_path / NOTES).open("a") as file:
        file.write(line + "\n")
    notes = read_notes(Folder(tmp_path))
    again = measures_from(notes[0].now_s)
    retell(again, story.heard, notes)
    assert again.summary(story.state, story.now_s)["faults"] == 1


@pytest.mark.parametrize("content", ["7", "[[1]]", '[["x", "vitals", []]]', '{"a": 1}', ""])
def test_damaged_vitals_are_skipped(story: Story, tmp_path: Path, content: str) -> None:
    (tmp_path / VITALS).write_text(content)
    read_notes(Folder(tmp_path))
    Notes(Folder(tmp_path), story.measures, lambda: story.now_s).close()


def test_hours_in_which_nothing_ran_hold_no_devices(tmp_path: Path) -> None:
    """A run of two islands ends with its owner, and another owner resumes it three days later.

    A restart of the syncer alone keeps the owner, and its islands hold their devices meanwhile.
    """
    days_s, story = 3 * 86_400.0, Story(tmp_path)
    begun_s = story.now_s
    story.notes.owned(1, story.now_s)
    story.lives(9)
    ended_s = story.now_s
    story.notes.flush()

    def hours(measures: Measures) -> float:
        return sum(island_hours(measures.counts, story.now_s).values())

    for owner, held_s in ((1, 2 * (ended_s + days_s - begun_s)), (2, 2 * (ended_s - begun_s))):
        story.now_s = ended_s + days_s
        again = measures_from(begun_s)
        retell(again, story.heard, read_notes(Folder(tmp_path)))
        notes = Notes(Folder(tmp_path), again, lambda: story.now_s)
        notes.owned(owner, ended_s)
        assert hours(again) == pytest.approx(held_s / 3600)
        notes.held({A: "g", B: "g"})
        story.now_s += 60
        assert hours(again) == pytest.approx((held_s + 120) / 3600)
        notes.close()
        (tmp_path / NOTES).write_text('[10.0, "owned", [1]]\n')


def test_clock_does_not_go_back_after_a_restart() -> None:
    assert abs(Clock()() - time.time()) < 1
    ahead = Clock(time.time() + 1000)
    assert ahead() >= time.time() + 999, "the wall clock was set back, or is another machine's"
    assert ahead() <= ahead()
