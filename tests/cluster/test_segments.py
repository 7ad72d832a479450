"""Tests of a tape in segments: it reads as one tape, from any place, and old segments may go."""

from __future__ import annotations

import hashlib
import json
import random
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pytest

from archipelago.lab.checks.replay import replay
from cluster.launch.run_model import model_of
from cluster.storage.depot import Grown
from cluster.storage.folder import Folder
from cluster.storage.format import FORMAT, Damaged
from cluster.storage.playback import Playback, edition_of, read_tape
from cluster.storage.segments import Segment, TapePosition, segments
from cluster.storage.snapshots import STATE, beginnings, load_snapshot, save_snapshot
from cluster.storage.state_history import OtherRules
from cluster.storage.tape import ROW, Tape
from cluster.syncer.restore import come_back
from coordinator.errors import UserMistake
from coordinator.protocol import Fragment, Tick
from coordinator.state import EDITION
from coordinator.tape import freeze
from tests.cluster.played import CONFIG, Played
from tests.cluster.played import LAYOUT as CUT
from tests.cluster.test_comeback import Taped, lived
from tests.cluster.test_notes import measures_from
from tests.cluster.test_runs import config
from tests.cluster.test_store import OF_EVERY_KIND, written
from tests.coordinator.given import LAYOUT
from tests.system_calls import SystemCalls


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every snapshot seal a segment."""
    monkeypatch.setattr("cluster.storage.tape.SEGMENT_BYTES", 1)


def parted(folder: Path, chance: random.Random) -> list[tuple[int, TapePosition]]:
    """Write events of every kind in three generations, and return some places between them.

    The segments are sealed at random.
    """
    places: list[tuple[int, TapePosition]] = []
    seq, last = 0, 0
    for generation in range(3):
        with closing(Tape(Folder(folder), generation, LAYOUT, first_seq=seq)) as tape:
            for event in OF_EVERY_KIND[: chance.randrange(1, len(OF_EVERY_KIND))]:
                tape.append(tape.seq / 3, event, ())
                if chance.random() < 0.3:
                    tape.seal()
                if chance.random() < 0.5:
                    tape.sync()
                    places.append((tape.seq, tape.place))
            last = tape.seq
        seq = last
    return places


def test_segments_read_as_one_tape_from_any_place(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(20):
        folder = tmp_path / str(number)
        places = parted(folder, chance)
        whole = read_tape(Folder(folder), LAYOUT)
        assert [row.seq for row in whole.events] == [*range(whole.length)]
        assert (whole.damage, whole.generations) == (None, 3)
        for seq, place in places:
            played = Playback(Folder(folder), LAYOUT, seq, place)
            assert [*played] == whole.events[seq:]
            assert (played.length, played.damage) == (whole.length, None)


def test_nothing_before_the_place_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither earlier segments nor earlier bytes of the same segment are read."""
    tape = written(tmp_path, OF_EVERY_KIND[:4])
    tape.seal()
    tape.append(1.0, OF_EVERY_KIND[4], ())
    tape.sync()
    seq, place = tape.seq, tape.place
    for event in OF_EVERY_KIND[5:]:
        tape.append(1.0, event, ())
    tape.close()
    read: list[tuple[str, int]] = []
    grown = Folder.grown

    def seen(self: Folder, name: str, start: int = 0) -> Grown:
        read.append((name, start))
        return grown(self, name, start)

    monkeypatch.setattr(Folder, "grown", seen)
    assert len([*Playback(Folder(tmp_path), LAYOUT, seq, place)]) == len(OF_EVERY_KIND) - 5
    assert read == [(place.segment.name, place.offset)]
    assert place.offset > 0


def test_place_beyond_the_tape_is_damage_and_a_void_one_is_refused(
    tmp_path: Path,
) -> None:
    tape = written(tmp_path, OF_EVERY_KIND[:4])
    tape.sync()
    there = tape.place
    tape.close()
    for wrong, why in (
        (there._replace(offset=there.offset + 10**4), "ends before event 4"),
        (there._replace(segment=Segment(0, 4)), "tape-0-000000000004.arrow is not there"),
    ):
        played = Playback(Folder(tmp_path), LAYOUT, 4, wrong)
        assert [*played] == []
        assert played.length == 4
        assert why in str(played.damage)
    written(tmp_path, OF_EVERY_KIND[:2], generation=1, first_seq=2).close()
    with pytest.raises(Damaged, match="a later syncer continued from event 2, not from 4"):
        Playback(Folder(tmp_path), LAYOUT, 4, there)


def test_missing_segment_ends_its_generation(tmp_path: Path) -> None:
    tape = written(tmp_path, OF_EVERY_KIND[:3])
    for event in OF_EVERY_KIND[3:6]:
        tape.seal()
        tape.append(1.0, event, ())
    tape.close()
    _, _, third, _ = segments(Folder(tmp_path))
    (tmp_path / third.name).unlink()
    recording = read_tape(Folder(tmp_path), LAYOUT)
    assert [row.event for row in recording.events] == [*OF_EVERY_KIND[:4]]
    assert recording.damage == "tape-0-000000000005.arrow: event 5 where 4 should be"


@pytest.mark.parametrize("room", [0, 100, 1500])
def test_full_disk_delays_segments_without_gaps(tmp_path: Path, room: int) -> None:
    with SystemCalls(tmp_path) as disk:
        tape = written(tmp_path, OF_EVERY_KIND[:2])
        tape.sync()
        disk.room = room
        for event in OF_EVERY_KIND[2:8]:
            tape.append(9.0, event, ())
            tape.seal()
            tape.sync()
            durable = [row.event for row in read_tape(Folder(tmp_path), LAYOUT).events]
            assert durable == [*OF_EVERY_KIND[: len(durable)]]
        disk.room = None
        tape.append(9.0, OF_EVERY_KIND[8], ())
        tape.close()
    recording = read_tape(Folder(tmp_path), LAYOUT)
    assert [row.event for row in recording.events] == [*OF_EVERY_KIND[:9]]
    assert (recording.damage, tape.trouble) == (None, None)
    assert len(segments(Folder(tmp_path))) == 7


def test_restart_needs_no_segment_before_its_snapshot(tmp_path: Path) -> None:
    with closing(Taped(tmp_path)) as told:
        lived(told, "middle")
        (gone, _) = segments(Folder(tmp_path))
        (tmp_path / gone.name).unlink()
        back, _ = told.back()
        assert (back.state, back.generation) == (told.state, 1)
        assert 0 < back.heard < len(told.heard)


def test_damaged_snapshot_is_replaced_by_the_previous_one(tmp_path: Path) -> None:
    with closing(Taped(tmp_path)) as told:
        told.keep_snapshot()
        lived(told, "middle")
        (tmp_path / STATE).write_text("{")
        heard: list[int] = []
        measures = measures_from(told.now_s)
        back = come_back(Folder(tmp_path), told.rule, measures, heard.append)
        assert back is not None
        assert (back.state, back.heard) == (told.state, len(heard))
        assert heard == [*range(len(told.heard) - back.heard, len(told.heard))]
        assert back.heard < len(told.heard)


def test_old_segments_are_deleted_and_replay_reports_where_it_begins(tmp_path: Path) -> None:
    plain = CONFIG.replace("keep_contributions = true", "keep_segments = 3")
    run = Played(tmp_path, plain)
    run.to_the_end(40, snapshot_every=4)
    depot = Folder(tmp_path)
    there = segments(depot)
    assert beginnings(depot) == there
    assert len(there) == 3
    told = replay(tmp_path)
    assert (told["exact"], told["from_event"]) == (True, there[0].first)
    assert told["compared"] == {"effects": True, "state": True, "tokens": True}
    assert told["violations"] is None
    kept = load_snapshot(depot, CUT.fingerprint)
    assert kept is not None
    assert (told["events"], told["merges"]) == (kept.seq - there[0].first, run.state.merges)
    for name in (STATE, *(f"states/{each}" for each in depot.names("states"))):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace("rules", "rulez"))
    with pytest.raises(Damaged, match="is not as it was written"):
        replay(tmp_path)


def test_run_without_a_beginning_has_only_its_newest_model(tmp_path: Path) -> None:
    run = Played(tmp_path, CONFIG.replace("keep_contributions = true", "keep_segments = 2"))
    run.to_the_end(24, snapshot_every=4)
    with pytest.raises(UserMistake, match="the beginning of its tape is gone"):
        model_of(tmp_path, 0)
    newest = [run.history[Fragment(p), each.version] for p, each in enumerate(run.state.fragments)]
    found = [flat.tolist() for _, flat in model_of(tmp_path).public()]
    assert found == [arrays.public.tolist() for arrays in newest]


def test_all_segments_are_kept_by_default(tmp_path: Path) -> None:
    Played(tmp_path).to_the_end(40, snapshot_every=4)
    assert len(segments(Folder(tmp_path))) == 12
    assert len(beginnings(Folder(tmp_path))) == 2
    told = replay(tmp_path)
    assert (told["exact"], told["from_event"], told["violations"]) == (True, 0, 0)
    assert told["compared"] == dict.fromkeys(("effects", "state", "fragments", "tokens"), True)


def test_run_from_before_segments_is_read_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Format 4 has one file a generation, and snapshots without a place."""
    for module in ("tape", "snapshots", "sealed"):
        monkeypatch.setattr(f"cluster.storage.{module}.FORMAT", "4")
    run = Played(tmp_path)
    run._tape.seal = lambda: False  # type: ignore[method-assign]
    run.to_the_end(24)
    depot = Folder(tmp_path)
    kept = load_snapshot(depot, CUT.fingerprint)
    assert kept is not None
    plain = {each.name for each in fields(kept)} - {"place"}
    told = {name: getattr(kept, name) for name in plain} | {"state": freeze(kept.state)}
    text = json.dumps(told)
    digest = hashlib.sha256(text.encode()).hexdigest()
    whole = {"format": "4", "layout": CUT.fingerprint, "sha256": digest, "snapshot": text}
    depot.write(STATE, json.dumps(whole).encode())
    assert [each.name for each in segments(depot)] == ["tape-0.arrow"]
    assert replay(tmp_path)["exact"] is True
    measures = measures_from(0.0)
    measures_kept = replace(kept, measures=measures.memory(), place=None, seq=kept.seq - 1)
    save_snapshot(depot, measures_kept, CUT.fingerprint)
    with pytest.raises(OtherRules):  # the state is one event ahead of `seq`
        come_back(depot, run.rule, measures)
    save_snapshot(depot, replace(measures_kept, seq=kept.seq), CUT.fingerprint)
    back = come_back(depot, run.rule, measures)
    assert back is not None
    assert (back.state, back.heard, back.seq) == (run.state, 0, kept.seq)


def test_kept_contributions_need_the_whole_tape() -> None:
    with pytest.raises(UserMistake, match=r"durability.keep_segments: deletes the beginning"):
        config("durability.keep_segments=4", "durability.keep_contributions=true")


def test_tape_names_the_edition_of_its_rules(tmp_path: Path) -> None:
    """A run keeps the edition that it began with, whatever is newest. Older tapes name none."""
    depot = Folder(tmp_path)
    assert edition_of(depot) == EDITION, "of a run that has not begun"
    for generation, edition in enumerate((EDITION + 1, 0)):
        with closing(Tape(depot, generation, LAYOUT, edition=edition)) as tape:
            tape.append(0.0, Tick(), ())
        assert edition_of(depot) == edition
    (tmp_path / "tape-2.arrow").write_bytes(b"")  # it was killed before it had a header
    assert edition_of(depot) == 0


def test_tape_without_an_edition_is_of_the_first(tmp_path: Path) -> None:
    schema = ROW.with_metadata({"format": FORMAT, "layout": LAYOUT, "generation": "0"})
    with pa.OSFile(str(tmp_path / "tape-0.arrow"), "wb") as file, pa.ipc.new_stream(file, schema):
        pass
    assert edition_of(Folder(tmp_path)) == 0
