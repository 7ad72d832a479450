"""Tests of a restarted syncer: it has its predecessor's state, with or without a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import fields, replace
from pathlib import Path

import pytest

from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.fragments import fragment_name
from cluster.storage.snapshots import Snapshot, load_snapshot, name_of, save_snapshot
from cluster.storage.tape import Tape
from cluster.syncer.counts import Counts
from cluster.syncer.measures import Measures
from cluster.syncer.restore import Comeback, come_back
from cluster.syncer.resume_point import rules_sha256
from coordinator.advance import advance
from coordinator.protocol import Effect, Event, Fragment, Lost, Resume, Version
from tests.cluster.test_notes import A, Story, figures, measures_from
from tests.coordinator.given import LAYOUT, rule


class Taped(Story):
    """A story whose tape is on the disk."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir)
        self.run_dir, self.tape = run_dir, Tape(Folder(run_dir), 0, LAYOUT)

    def say(self, event: Event) -> tuple[Effect, ...]:
        effects = super().say(event)
        self.tape.append(self.now_s, event, effects)
        return effects

    def keep_snapshot(self) -> None:
        sealed = self.tape.seal()
        self.tape.sync()
        memory, notes = self.measures.memory(), self.notes.length
        seq, rules = self.tape.seq, rules_sha256(self.rule)
        place = self.tape.place
        self.notes.flush()
        kept = Snapshot(self.state, seq, self.now_s, memory, notes, rules, place)
        save_snapshot(Folder(self.run_dir), kept, LAYOUT)
        if sealed:
            save_snapshot(Folder(self.run_dir), kept, LAYOUT, name_of(place.segment))

    def close(self) -> None:
        self.tape.close()
        self.notes.close()

    def back(self) -> tuple[Comeback, Measures]:
        measures = measures_from(self.now_s + 100)  # it has no time of the run's begin
        told = come_back(Folder(self.run_dir), self.rule, measures)
        assert told is not None
        return told, measures


History = Callable[[str | None], Taped]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """Yield a run with two lives of an island, a fault between them, and a chosen snapshot."""
    with ExitStack() as stack:
        yield lambda snapshot_at: lived(stack.enter_context(closing(Taped(tmp_path))), snapshot_at)


def lived(told: Taped, snapshot_at: str | None) -> Taped:
    if snapshot_at == "beginning":
        told.keep_snapshot()
    first = told.lives(9)
    told.now_s += 0.5
    told.notes.fault(A)
    told.notes.evaluated(9, 4.25)
    told.notes.held({A: "g"})
    if snapshot_at == "middle":
        told.keep_snapshot()
    told.now_s += 3
    told.say(Lost(first, "its process ended"))
    told.now_s += 4
    told.lives(9)
    if snapshot_at == "end":
        told.keep_snapshot()
    told.tape.sync()
    told.notes.flush()
    return told


@pytest.mark.parametrize("snapshot_at", [None, "beginning", "middle", "end"])
def test_comeback_is_the_same_wherever_the_snapshot_was_taken(
    history: History, tmp_path: Path, snapshot_at: str | None
) -> None:
    told = history(snapshot_at)
    back, measures = told.back()
    assert back.state == told.state
    assert (back.seq, back.generation, back.damage) == (len(told.heard), 1, None)
    assert back.last_s == told.now_s
    kept = load_snapshot(Folder(tmp_path), LAYOUT)
    assert back.heard == len(told.heard) - (0 if kept is None else kept.seq)
    before, after = figures(told, told.measures), figures(told, measures)
    assert after.pop("goodput") == pytest.approx(before.pop("goodput"), rel=0.15), "of 2 s less"
    assert after == before


def test_first_generation_has_nothing_to_come_back_to(tmp_path: Path) -> None:
    assert come_back(Folder(tmp_path), rule(), measures_from(0.0)) is None


def spoilt(run_dir: Path) -> None:
    path = run_dir / "state.json"
    path.write_text(path.read_text().replace("0", "1"))


def foreign(run_dir: Path) -> None:
    kept = load_snapshot(Folder(run_dir), LAYOUT)
    assert kept is not None
    save_snapshot(Folder(run_dir), replace(kept, rules="others"), LAYOUT)


def ahead(run_dir: Path) -> None:
    """Move the snapshot to a moment that the tape does not reach."""
    kept = load_snapshot(Folder(run_dir), LAYOUT)
    assert kept is not None
    assert kept.place is not None
    further = kept.place._replace(offset=kept.place.offset + 1)
    save_snapshot(Folder(run_dir), replace(kept, seq=kept.seq + 1, place=further), LAYOUT)


def ahead_of_an_old_tape(run_dir: Path) -> None:
    kept = load_snapshot(Folder(run_dir), LAYOUT)
    assert kept is not None
    save_snapshot(Folder(run_dir), replace(kept, seq=kept.seq + 1, place=None), LAYOUT)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (spoilt, "state.json is not as it was written"),
        (foreign, "state.json is of other rules"),
    ],
)
def test_unusable_snapshot_costs_only_time(
    history: History,
    tmp_path: Path,
    harm: Callable[[Path], None],
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = history("end")
    harm(tmp_path)
    back, measures = told.back()
    assert (back.state, back.heard) == (told.state, len(told.heard))
    assert measures.summary(back.state, told.now_s)["faults"] == 1
    assert says in caplog.text
    assert "the whole tape is replayed" in caplog.text


@pytest.mark.parametrize("harm", [ahead, ahead_of_an_old_tape])
def test_resumes_from_a_snapshot_that_is_ahead_of_the_tape(
    history: History, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    told = history("end")
    harm(tmp_path)
    back, _ = told.back()
    assert (back.state, back.seq, back.heard) == (told.state, len(told.heard) + 1, 0)
    assert back.damage is not None


@pytest.mark.parametrize("snapshot_at", ["middle", "end"])
def test_resumes_from_a_snapshot_without_the_tape(
    history: History, tmp_path: Path, snapshot_at: str
) -> None:
    told = history(snapshot_at)
    kept = load_snapshot(Folder(tmp_path), LAYOUT)
    assert kept is not None
    (tmp_path / "tape-0.arrow").unlink()
    back, _ = told.back()
    assert (back.state, back.seq, back.heard) == (kept.state, kept.seq, 0)
    assert back.damage == "tape-0.arrow is not there"
    assert back.generation == 1, "later than the generation of the snapshot"


def test_second_restart_resumes_after_the_gap_in_the_tape(history: History, tmp_path: Path) -> None:
    """The first restarted syncer dies before it has a snapshot of its own."""
    told = history("end")
    (tmp_path / "tape-0.arrow").unlink()
    first, _ = told.back()
    tape = Tape(Folder(tmp_path), first.generation, LAYOUT, first_seq=first.seq)
    with closing(tape):
        event = Resume(first.generation, first.wanted)
        state, effects = advance(told.rule, first.state, event, told.now_s)
        tape.append(told.now_s, event, effects)
    second, _ = told.back()
    assert (second.state, second.seq, second.generation) == (state, first.seq + 1, 2)


@pytest.mark.parametrize("left", ["state.json", "states", "fleet.json", "fragments"])
def test_missing_tape_of_a_run_that_began_is_damage(tmp_path: Path, left: str) -> None:
    if left == "states":
        Folder(tmp_path).write("states/tape-0-000000000001.json", b"{")
    elif left == "fragments":
        for number in (0, 7):
            Folder(tmp_path).write(fragment_name(Fragment(0), Version(0, number)), b"")
    else:
        Folder(tmp_path).write(left, b"{")
    with pytest.raises(Damaged, match="the tape is not there, and no snapshot can be used"):
        come_back(Folder(tmp_path), rule(), measures_from(0.0))
    back = come_back(Folder(tmp_path), rule(), measures_from(0.0), from_stored=True)
    assert back is not None
    assert back.damage is not None
    assert "t begins at 0" in back.damage
    assert back.wanted == (Version(0, 7 if left == "fragments" else 0),)


def test_lost_merges_are_counted(history: History) -> None:
    told = history("end")
    now = told.state.fragments[Fragment(0)].version
    told.say(Resume(1, (Version(now.generation, now.number - 2),)))
    shown = told.measures.status(told.rule, told.state, told.now_s)["figures"]
    assert shown is not None
    assert shown["merges_lost"] == 2


def test_memory_has_everything_but_the_arguments_of_the_run() -> None:
    measures = measures_from(0.0)
    assert set(vars(measures)) == {
        "_run", "_sizes", "_bytes", "_links", "_counts", "_time",
    }  # fmt: skip
    assert set(measures.memory()) == {each.name for each in fields(Counts)}
