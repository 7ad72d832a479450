"""Tests that files on the disk are whole, or are refused with a message."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from cluster.storage.contributions import ContributionStore
from cluster.storage.files import write, write_json
from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.fragments import (
    Arrays,
    FragmentStore,
    forget_orphans,
    fragment_name,
    stored_versions,
)
from cluster.storage.identity import IDENTITY, have_identity, identity_of
from cluster.storage.model_file import ModelFiles, fingerprint
from cluster.storage.playback import read_tape
from cluster.storage.sealed import seal
from cluster.storage.snapshots import Snapshot, load_snapshot, save_snapshot
from cluster.storage.tape import FLUSH_EVENTS, Tape, checksum
from coordinator.advance import advance
from coordinator.codec import Wire, encode, split
from coordinator.errors import LayoutMismatch
from coordinator.fragments import Flat, Layout, Leaf, cut, take
from coordinator.protocol import (
    Adopted,
    Arrived,
    Ask,
    ContributionId,
    Drain,
    Effect,
    Event,
    Finish,
    Fragment,
    Island,
    Join,
    Lease,
    LeaseWanted,
    Left,
    Lost,
    Merged,
    Missing,
    Progress,
    Report,
    Stop,
    Stored,
    Tick,
    Version,
    Wake,
)
from coordinator.state import State, initial
from tests.coordinator.given import LAYOUT, contribution, life, rule
from tests.live.cli import until
from tests.system_calls import SystemCalls

MODEL: Layout = cut([Leaf("blocks/w", (3, 4, 2), stacked=True), Leaf("b", (5,)), Leaf("s", ())], 3)
FRAGMENTS = [Fragment(p) for p in range(3)]
F0 = Fragment(0)


def leaves(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.normal(size=leaf.shape), np.float32) for leaf in MODEL.leaves]


def flats(seed: int = 0) -> list[Flat]:
    return [take(MODEL, p, leaves(seed)) for p in FRAGMENTS]


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flips(path: Path, every: int) -> Iterator[None]:
    """Flip one bit of the file, at one place after another."""
    whole = path.read_bytes()
    for place in range(0, len(whole), every):
        flipped = whole[place] ^ 1 << place % 8
        path.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        yield


# --- whole files ----------------------------------------------------------------------------------


def test_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write(path, b"one")
    with path.open("rb") as reading:
        write(path, b"two and more")
        assert reading.read() == b"one", "whoever reads goes on with what he opened"
    assert path.read_bytes() == b"two and more"
    assert contents(path.parent) == ["file"]


def test_failed_write_leaves_the_old_file_and_no_stray_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write(path, b"one")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, b"two")
    assert path.read_bytes() == b"one"
    assert contents(tmp_path) == ["file"]


def test_json_is_readable_for_people(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {"merges": 3, "recovery_s": []})
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text) == {"merges": 3, "recovery_s": []}
    assert text.endswith("}\n")
    assert len(text.splitlines()) == 4


# --- the model ------------------------------------------------------------------------------------


def saved(folder: Path, versions: list[Version], **options: Any) -> list[Path]:
    files = ModelFiles(folder, MODEL, **options)
    for version, flat in zip(versions, flats(), strict=True):
        assert not [*folder.glob("model*")]
        files.add(version, flat)
    paths = files.publish()
    files.discard()
    assert sorted(paths) == sorted(folder.iterdir())
    assert files.fingerprint == fingerprint(flats())
    return paths


def test_model_is_saved_by_the_names_of_its_tree(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    versions = [Version(0, number) for number in (3, 2, 2)]
    assert saved(tmp_path, versions) == [path]
    tensors = load_file(path)
    for leaf, wanted in zip(MODEL.leaves, leaves(), strict=True):
        np.testing.assert_array_equal(tensors[leaf.path], wanted)
        assert tensors[leaf.path].dtype == np.float32
    assert len(tensors) == len(MODEL.leaves)
    with safe_open(path, "np") as file:
        told = file.metadata()
    assert told["global_sha256"] == fingerprint(flats())
    assert told["layout"] == MODEL.fingerprint
    assert json.loads(told["versions"]) == [[0, 3], [0, 2], [0, 2]]


@pytest.mark.parametrize(("part_bytes", "files"), [(96, 2), (24, 2), (20, 3), (1, 3)])
def test_large_model_is_in_several_files_with_an_index(
    tmp_path: Path, part_bytes: int, files: int
) -> None:
    """The format is that of Hugging Face's tools. A tensor is never split, however large it is."""
    *parts, last = saved(tmp_path, [Version(0, 2**60)] * 3, part_bytes=part_bytes)
    numbers = range(1, files + 1)
    assert [path.name for path in parts] == [
        f"model-{number:05d}-of-{files:05d}.safetensors" for number in numbers
    ]
    assert last.name == "model.safetensors.index.json"
    index = json.loads(last.read_text())
    assert index["metadata"]["total_size"] == 4 * MODEL.parameters
    assert index["metadata"]["global_sha256"] == fingerprint(flats())
    assert index["weight_map"].keys() == {leaf.path for leaf in MODEL.leaves}
    for leaf, wanted in zip(MODEL.leaves, leaves(), strict=True):
        there = load_file(tmp_path / index["weight_map"][leaf.path])
        np.testing.assert_array_equal(there[leaf.path], wanted)


def test_incomplete_model_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"an older one")
    files = ModelFiles(tmp_path, MODEL)
    files.add(Version(0, 1), flats()[0])
    with pytest.raises(LayoutMismatch, match="fragment 1 has"):
        files.add(Version(0, 1), np.zeros(3, np.float32))
    files.discard()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"an older one"]


def test_fingerprint_covers_the_fragments_in_order() -> None:
    together = b"".join(flat.astype("<f4").tobytes() for flat in flats())
    assert fingerprint(flats()) == hashlib.sha256(together).hexdigest()
    assert fingerprint(flats()) != fingerprint(flats()[::-1])
    changed = flats()
    changed[1][-1] = np.nextafter(changed[1][-1], np.float32(9))
    assert fingerprint(changed) != fingerprint(flats())


# --- the tape -------------------------------------------------------------------------------------

A = life("a")
OF_EVERY_KIND: Sequence[Event] = (
    Join(Island("a"), "group", LAYOUT),
    Report(A, contribution().progress, step_s=0.25),
    LeaseWanted(A),
    Arrived(contribution(norm=math.pi)),
    Missing(A, F0, "nothing to hand in"),
    Merged(F0, Version(0, 1)),
    Stored(F0, Version(0, 1), durable=False),
    Adopted(A, F0, Version(0, 1), 3, 100, contribution().progress),
    Lost(A, "gone"),
    Drain(Island("a"), 'says "go" – ü'),
    Left(A, contribution().progress),
    Tick(),
    Stop("enough"),
)


ANSWERS: Sequence[tuple[Effect, ...]] = ((), (Wake(1 / 3),), (Ask(A, F0), Finish("over")))


def written(folder: Path, events: Sequence[Event], **options: int) -> Tape:
    tape = Tape(
        Folder(folder), options.get("generation", 0), LAYOUT, first_seq=options.get("first_seq", 0)
    )
    for number, event in enumerate(events):
        tape.append(number / 3, event, ANSWERS[number % len(ANSWERS)])
    return tape


def read(folder: Path) -> list[Event]:
    return [row.event for row in read_tape(Folder(folder), LAYOUT).events]


def test_every_kind_of_event_survives_a_round_trip(tmp_path: Path) -> None:
    written(tmp_path, OF_EVERY_KIND).close()
    recording = read_tape(Folder(tmp_path), LAYOUT)
    assert [row[:3] for row in recording.events] == [
        (n, n / 3, event) for n, event in enumerate(OF_EVERY_KIND)
    ]
    assert [row.answer for row in recording.events[:3]] == [checksum(each) for each in ANSWERS]
    assert (recording.generations, recording.damage) == (1, None)


def test_tape_can_be_read_while_it_grows(tmp_path: Path) -> None:
    """A reader sees everything up to the last flush."""
    tape = written(tmp_path, OF_EVERY_KIND[:4])
    tape.sync()
    tape.append(9.0, Tick(), ())
    assert read(tmp_path) == [*OF_EVERY_KIND[:4]]
    tape.close()
    assert read(tmp_path) == [*OF_EVERY_KIND[:4], Tick()]
    tape.close()
    assert len(read(tmp_path)) == 5, "closing it twice does no harm"


def test_long_tape_is_flushed_regularly(tmp_path: Path) -> None:
    tape = written(tmp_path, [Tick()] * (2 * FLUSH_EVENTS + 1))
    until(lambda: len(read(tmp_path)) == 2 * FLUSH_EVENTS)
    tape.close()


@pytest.mark.parametrize(
    "start", [0, 1, FLUSH_EVENTS, FLUSH_EVENTS + 1, 2 * FLUSH_EVENTS + 3, 9999]
)
def test_events_before_the_start_are_skipped(tmp_path: Path, start: int) -> None:
    events = [*OF_EVERY_KIND, *[Tick()] * (2 * FLUSH_EVENTS)]
    written(tmp_path, events).close()
    written(tmp_path, OF_EVERY_KIND[:2], generation=1, first_seq=len(events)).close()
    told = [*events, *OF_EVERY_KIND[:2]]
    recording = read_tape(Folder(tmp_path), LAYOUT, start)
    assert [row.event for row in recording.events] == told[start:]
    assert [row.seq for row in recording.events] == [*range(start, len(told))]
    assert (recording.length, recording.generations, recording.damage) == (len(told), 2, None)


@pytest.mark.parametrize("room", [0, 1, 100, 700])
def test_full_disk_delays_a_tape_without_gaps(tmp_path: Path, room: int) -> None:
    with SystemCalls(tmp_path) as disk:
        tape = written(tmp_path, OF_EVERY_KIND[:2])
        tape.sync()
        disk.room = room
        for number, event in enumerate(OF_EVERY_KIND[2:8]):
            tape.append(9.0, event, ())
            tape.sync()
            durable = read(tmp_path)
            assert durable == [*OF_EVERY_KIND[: len(durable)]], f"after {number + 1} more"
        assert tape.trouble == "No space left on device"
        assert len(read(tmp_path)) < 8
        disk.room = None
        tape.sync()
        assert tape.trouble is None
        told = read(tmp_path)
        assert told == [*OF_EVERY_KIND[:8]], "what waited is there, also without a new event"
        tape.append(9.0, OF_EVERY_KIND[8], ())
        tape.close()
    recording = read_tape(Folder(tmp_path), LAYOUT)
    assert ([row.event for row in recording.events], recording.damage) == (
        [*OF_EVERY_KIND[:9]],
        None,
    )


def test_generations_follow_each_other(tmp_path: Path) -> None:
    killed = written(tmp_path, OF_EVERY_KIND[:4])
    killed.sync()  # its process writes no end
    written(tmp_path, OF_EVERY_KIND[4:], generation=1, first_seq=4).close()
    assert read(tmp_path) == [*OF_EVERY_KIND]
    assert read_tape(Folder(tmp_path), LAYOUT).generations == 2
    with pytest.raises(FileExistsError):
        Tape(Folder(tmp_path), 1, LAYOUT)
    killed.close()


@pytest.mark.parametrize("torn", [b"", b"half a header", None])
def test_generation_that_died_early_does_not_hide_the_next(
    tmp_path: Path, torn: bytes | None
) -> None:
    written(tmp_path, OF_EVERY_KIND[:4]).close()
    stillborn = written(tmp_path, OF_EVERY_KIND[4:6], generation=1, first_seq=4)
    if torn is not None:
        (tmp_path / "tape-1.arrow").write_bytes(torn)
    written(tmp_path, OF_EVERY_KIND[4:], generation=2, first_seq=4).close()
    recording = read_tape(Folder(tmp_path), LAYOUT)
    assert [row.event for row in recording.events] == [*OF_EVERY_KIND]
    assert recording.generations == 3
    assert (recording.damage is None) == (torn is None)
    stillborn.close()


@pytest.mark.parametrize("start", [0, 4, 5])
def test_events_of_a_cut_off_syncer_are_void(tmp_path: Path, start: int) -> None:
    """A syncer on a node that was cut off still wrote.

    The next generation continued from what it had found.
    """
    cut_off = written(tmp_path, OF_EVERY_KIND[:4])
    cut_off.sync()
    written(tmp_path, OF_EVERY_KIND[4:], generation=1, first_seq=4).close()
    for _ in range(20):
        cut_off.append(9.0, Tick(), ())
    cut_off.close()
    recording = read_tape(Folder(tmp_path), LAYOUT, start)
    assert [row.event for row in recording.events] == [*OF_EVERY_KIND[start:]]
    assert (recording.length, recording.damage) == (len(OF_EVERY_KIND), None)


def test_generation_after_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    first = written(tmp_path, OF_EVERY_KIND[:2])
    first.sync()
    good = (tmp_path / "tape-0.arrow").stat().st_size
    for event in OF_EVERY_KIND[2:4]:
        first.append(9.0, event, ())
    first.close()
    written(tmp_path, OF_EVERY_KIND[4:], generation=1, first_seq=4).close()
    (tmp_path / "tape-0.arrow").write_bytes((tmp_path / "tape-0.arrow").read_bytes()[: good + 50])
    recording = read_tape(Folder(tmp_path), LAYOUT)
    told = [row.event for row in recording.events]
    assert told == [*OF_EVERY_KIND[:2]]
    assert recording.damage is not None
    assert "event 4 where" in recording.damage


def test_truncated_tape_is_good_up_to_the_cut(tmp_path: Path) -> None:
    tape = written(tmp_path, OF_EVERY_KIND[:4])
    tape.sync()
    tape.append(9.0, Tick(), ())
    tape.close()
    file = tmp_path / "tape-0.arrow"
    whole = file.read_bytes()
    for length in range(len(whole) - 200, len(whole), 7):
        file.write_bytes(whole[:length])
        assert read(tmp_path) in ([*OF_EVERY_KIND[:4]], [*OF_EVERY_KIND[:4], Tick()])


def test_flipped_bit_in_a_tape_is_noticed(tmp_path: Path) -> None:
    """Wherever the bit is, the tape reads as a prefix of what was written, or is refused."""
    written(tmp_path, OF_EVERY_KIND).close()
    noticed = places = 0
    for _ in flips(tmp_path / "tape-0.arrow", 5):
        places += 1
        try:
            recording = read_tape(Folder(tmp_path), LAYOUT)
        except Damaged:
            noticed += 1
            continue
        noticed += recording.damage is not None
        told = [row.event for row in recording.events]
        assert told == [*OF_EVERY_KIND[: len(told)]]
    assert noticed > places / 2, "the rest is padding, or names nothing that is read"


def test_tape_of_another_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="no tape"):
        read_tape(Folder(tmp_path), LAYOUT)
    written(tmp_path, OF_EVERY_KIND).close()
    with pytest.raises(Damaged, match="another layout"):
        read_tape(Folder(tmp_path), "of another model")
    (tmp_path / "tape-0.arrow").write_bytes(b"nothing of ours")
    with pytest.raises(Damaged, match="no readable beginning"):
        read_tape(Folder(tmp_path), LAYOUT)


# --- the rules' state -----------------------------------------------------------------------------


def lived() -> State:
    """Return a state with something of everything in it."""
    rules = rule(every=4, fragments=2, quorum=2)
    state = initial(rules)
    says: Sequence[Event] = (
        Join(Island("a"), "group", LAYOUT),
        Join(Island("b"), "group", LAYOUT),
        Report(A, contribution(span=(0, 4)).progress, step_s=0.25),
        Report(life("b", 2), Progress(4, 400, Lease(2, 4)), step_s=0.5),
        Arrived(contribution(A, 0, (0, 4), norm=1 / 3)),
        Drain(Island("b"), "why not"),
    )
    for number, event in enumerate(says):
        state, _ = advance(rules, state, event, number / 3)
    return state


def snapshot() -> Snapshot:
    return Snapshot(lived(), 6, 5 / 3, {"faults": 1, "first_s": math.inf}, 17, "a source")


def test_snapshot_survives_a_round_trip(tmp_path: Path) -> None:
    assert load_snapshot(Folder(tmp_path), LAYOUT) is None
    save_snapshot(Folder(tmp_path), snapshot(), LAYOUT)
    assert load_snapshot(Folder(tmp_path), LAYOUT) == snapshot()
    assert contents(tmp_path) == ["state.json"]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('"format": "8"', '"format": "2"', "another format"),
        ('\\"t\\":4', '\\"t\\":5', "not as it was written"),
        ('"sha256"', '"sha266"', "cannot be read"),
        ("}", "", "cannot be read"),
    ],
)
def test_changed_snapshot_is_refused(tmp_path: Path, before: str, after: str, says: str) -> None:
    save_snapshot(Folder(tmp_path), snapshot(), LAYOUT)
    path = tmp_path / "state.json"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(Damaged, match=says):
        load_snapshot(Folder(tmp_path), LAYOUT)


# --- arrays ---------------------------------------------------------------------------------------


def arrays(number: int, generation: int = 0) -> Arrays:
    master, momentum, public = (flats(3 * number + part)[F0] for part in range(3))
    return Arrays(Version(generation, number), master, momentum, public)


def same(a: Arrays, b: Arrays) -> bool:
    pairs = ((a.master, b.master), (a.momentum, b.momentum), (a.public, b.public))
    return a.version == b.version and all(np.array_equal(x, y) for x, y in pairs)


def test_newest_versions_and_the_first_are_kept(tmp_path: Path) -> None:
    store = FragmentStore(Folder(tmp_path), MODEL, keep=2)
    store.save(F0, arrays(0), first=True)
    for number in range(1, 6):
        store.save(F0, arrays(number))
        assert same(store.newest(F0), arrays(number))
    assert same(store.oldest(F0), arrays(0))
    assert same(store.newest(F0, upto=Version(0, 4)), arrays(4))
    assert len(contents(tmp_path / "fragments")) == 3
    with pytest.raises(Damaged, match="no version of fragment 1"):
        store.oldest(Fragment(1))


def test_later_generation_is_newer_whatever_its_number(tmp_path: Path) -> None:
    store = FragmentStore(Folder(tmp_path), MODEL, keep=4)
    store.save(F0, arrays(12), first=True)
    store.save(F0, arrays(11, generation=1))
    assert store.newest(F0).version == Version(1, 11)
    assert store.newest(F0, upto=Version(0, 99)).version == Version(0, 12)


def test_damaged_version_is_skipped_for_the_one_before(tmp_path: Path) -> None:
    store = FragmentStore(Folder(tmp_path), MODEL, keep=4)
    for number in range(4):
        store.save(F0, arrays(number), first=number == 0)
    *_, before, newest = sorted((tmp_path / "fragments").iterdir())
    content = bytearray(newest.read_bytes())
    content[-3] ^= 1
    newest.write_bytes(content)
    assert same(store.newest(F0), arrays(2))
    before.write_bytes(before.read_bytes()[:-9])
    assert same(store.newest(F0), arrays(1))
    with pytest.raises(Damaged, match="no good version"):
        FragmentStore(Folder(tmp_path), cut([Leaf("other", (5,))], 1), keep=4).newest(F0)


def stored(folder: Path, last: int) -> FragmentStore:
    """Store the versions up to `last`; version 0, for replay, and the newest two remain."""
    store = FragmentStore(Folder(folder), MODEL, keep=2)
    for number in range(last + 1):
        store.save(F0, arrays(number), first=number == 0)
    return store


def path_of(folder: Path, number: int) -> Path:
    return folder / fragment_name(F0, Version(0, number))


def test_fragment_never_goes_back_beyond_the_retained_versions(tmp_path: Path) -> None:
    """The first version is kept for replay.

    A run does not resume from it once others are trained.
    """
    store = stored(tmp_path, 5)
    with pytest.raises(
        Damaged, match=r"up to v3 of generation 0 among the newest 2; stored are v0"
    ):
        store.newest(F0, Version(0, 3))
    path_of(tmp_path, 5).write_bytes(b"")
    assert same(store.newest(F0, Version(0, 5)), arrays(4))
    path_of(tmp_path, 4).write_bytes(b"")
    with pytest.raises(Damaged, match="no good version of fragment 0 up to v5") as raised:
        store.newest(F0, Version(0, 5))
    assert "v00000004" in str(raised.value)
    assert "v00000005" in str(raised.value)
    assert len(contents(tmp_path / "fragments")) == 3, "nothing is deleted"


@pytest.mark.parametrize("last", [0, 1])
def test_new_run_resumes_from_its_first_version(tmp_path: Path, last: int) -> None:
    """The next version is stored and not public yet, or is damaged."""
    store = stored(tmp_path, last)
    assert same(store.newest(F0, Version(0, 0)), arrays(0))
    path_of(tmp_path, 1).write_bytes(b"")
    assert same(store.newest(F0, Version(0, 1)), arrays(0))


def test_later_version_is_set_aside_until_it_is_wanted_or_forgotten(tmp_path: Path) -> None:
    store, depot = stored(tmp_path, 5), Folder(tmp_path)
    store.forget_after(F0, Version(0, 4))
    assert not store.has(F0, Version(0, 5))
    assert path_of(tmp_path, 5).with_suffix(".safetensors.orphan").exists()
    assert same(store.newest(F0), arrays(4))
    assert same(store.newest(F0, Version(0, 5)), arrays(5)), "by a restore that has more"
    store.forget_after(F0, Version(0, 5))
    assert same(store.load(F0, Version(0, 5)), arrays(5)), "it has its name again"
    store.forget_after(F0, Version(0, 4))
    forget_orphans(depot)
    assert [each.version.number for each in stored_versions(depot)[F0]] == [0, 4]


def test_file_under_another_name_is_refused(tmp_path: Path) -> None:
    store = stored(tmp_path, 5)
    shutil.copy(path_of(tmp_path, 4), path_of(tmp_path, 5))
    with pytest.raises(Damaged, match=r"another file under this name: version 0\.4, not 0\.5"):
        store.load(F0, Version(0, 5))
    other = tmp_path / fragment_name(Fragment(7), Version(0, 4))
    shutil.copy(path_of(tmp_path, 4), other)
    with pytest.raises(Damaged, match="another file under this name: fragment 0, not 7"):
        store.load(Fragment(7), Version(0, 4))


def test_file_of_another_run_is_refused_unless_it_names_no_run(tmp_path: Path) -> None:
    stored(tmp_path / "other", 5)
    mine = stored(tmp_path / "mine", 5)
    old = FragmentStore(Folder(tmp_path / "old"), MODEL, keep=2)
    old.save(F0, arrays(5))
    shutil.copy(path_of(tmp_path / "other", 5), path_of(tmp_path / "mine", 5))
    with pytest.raises(Damaged, match=r"another file under this name: run [0-9a-f]{32}, not"):
        mine.load(F0, Version(0, 5))
    (tmp_path / "mine" / IDENTITY).unlink()  # without it runs cannot be compared
    anew = FragmentStore(Folder(tmp_path / "mine"), MODEL, keep=2)
    assert same(anew.load(F0, Version(0, 5)), arrays(5))
    shutil.copy(path_of(tmp_path / "old", 5), path_of(tmp_path / "mine", 5))
    assert same(mine.load(F0, Version(0, 5)), arrays(5))


def test_files_without_an_identity_are_read(tmp_path: Path) -> None:
    parts = {"master": flats()[0], "momentum": flats()[0], "public": flats()[0]}
    path_of(tmp_path, 3).parent.mkdir()
    path_of(tmp_path, 3).write_bytes(
        b"".join(bytes(each) for each in seal(parts, MODEL.fingerprint))
    )
    have_identity(Folder(tmp_path))
    store = FragmentStore(Folder(tmp_path), MODEL, keep=2)
    np.testing.assert_array_equal(store.newest(F0).master, flats()[0])


@pytest.mark.parametrize(
    "name", ["f0000-old.safetensors", "f0000-g0-v00000005 (copy).safetensors", "README.txt"]
)
def test_other_files_among_the_fragments_do_no_harm(tmp_path: Path, name: str) -> None:
    store = stored(tmp_path, 5)
    shutil.copy(path_of(tmp_path, 0), tmp_path / "fragments" / name)
    assert same(store.newest(F0), arrays(5))
    store.save(F0, arrays(6))
    store.forget_after(F0, Version(0, 5))
    assert name in contents(tmp_path / "fragments")


def test_identity_is_stable_and_damage_to_it_is_noticed(tmp_path: Path) -> None:
    depot = Folder(tmp_path)
    assert identity_of(depot) == ""
    run = have_identity(depot)
    assert have_identity(depot) == identity_of(depot) == run
    assert len(run) == 32
    for _ in flips(tmp_path / IDENTITY, 1):
        assert identity_of(depot) in ("", run)


def test_flipped_bit_in_a_fragment_is_noticed(tmp_path: Path) -> None:
    store = FragmentStore(Folder(tmp_path), MODEL, keep=1)
    store.save(F0, arrays(1))
    (path,) = (tmp_path / "fragments").iterdir()
    for _ in flips(path, 3):
        with pytest.raises(Damaged):
            store.newest(F0)


def test_flipped_bit_in_a_snapshot_is_noticed(tmp_path: Path) -> None:
    save_snapshot(Folder(tmp_path), snapshot(), LAYOUT)
    for _ in flips(tmp_path / "state.json", 7):
        with pytest.raises(Damaged):
            load_snapshot(Folder(tmp_path), LAYOUT)


@pytest.mark.parametrize("wire", Wire)
def test_contribution_is_stored_as_it_was_encoded(tmp_path: Path, wire: Wire) -> None:
    said, payload = ContributionId(A, F0, 3, 7), encode(wire, flats()[F0])
    store = ContributionStore(Folder(tmp_path))
    store.save(said, payload, LAYOUT)
    kept, _ = split(store.load(said, LAYOUT))
    assert kept.dtype == payload.dtype
    np.testing.assert_array_equal(kept, payload)
    with pytest.raises(Damaged, match="is not there"):
        store.load(said._replace(to_step=8), LAYOUT)
    with pytest.raises(Damaged, match="another format or layout"):
        store.load(said, "of another model")
