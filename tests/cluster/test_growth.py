"""Tests that what a run keeps is bounded, or grows no faster than the fault model allows."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from archipelago.lab.bench.long_tape import Crew, config_for
from archipelago.lab.bench.scale import layout_of
from cluster.fleet.event_kinds import EventKind, RunEvent
from cluster.fleet.metrics_row import CURVE_SKETCHED, metrics_line, sketched
from cluster.storage.files import aside_of, json_text
from cluster.storage.folder import Folder
from cluster.storage.line_thinning import StoredLine, kept_lines, stored_line
from cluster.storage.metrics_log import MEGABYTE, MetricsLog, last_look
from cluster.syncer.counts import RECOVERIES_KEPT, SPANS_KEPT
from cluster.syncer.island_measures import advanced
from cluster.syncer.journal import NOTES, VITALS, Notes, read_notes
from cluster.syncer.measures import Measures
from cluster.syncer.merge_measures import CURVE_KEPT
from coordinator.codec import Wire
from coordinator.protocol import Incarnation, Island, Join, Life, Lost, Vitals
from coordinator.state import initial
from coordinator.tape import freeze
from tests.cluster.test_notes import A, Story, measures_from
from tests.cluster.test_progress import a_status
from tests.coordinator.given import rule


def seeded() -> random.Random:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


# --- metrics.jsonl --------------------------------------------------------------------------------


def test_metrics_log_is_bounded_and_keeps_the_last_looks_whole(tmp_path: Path) -> None:
    chance, path = seeded(), tmp_path / "metrics.jsonl"
    log = MetricsLog(path, 1)
    said: list[str] = []
    for number in range(5_000):
        said.append(json.dumps({"t": number, "more": "x" * chance.randrange(1_000, 2_000)}))
        log.write(said[-1])
        assert path.stat().st_size < MEGABYTE + 3_000
        if number % 500 == 0:
            assert last_look(path) == said[-1]
    log.close()
    kept = path.read_text().splitlines()
    assert set(kept) <= set(said)
    numbers = [json.loads(line)["t"] for line in kept]
    assert numbers == sorted(numbers)
    assert numbers[-300:] == [*range(4_700, 5_000)], "all of the last"
    assert numbers[0] == 0, "and the first"
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.jsonl"]


def long_log(path: Path, evaluations: int, count: int = 12_000) -> list[dict[str, Any]]:
    """Return the lines that are left of `count` looks, half a second apart, of about 1.5 kB."""
    chance, log = seeded(), MetricsLog(path, 1)
    for number in range(count):
        step = number * evaluations // count if number > 100 else None
        begun = {"schema": 1, "unix_s": 1.7e9 + number / 2, "heldout_loss": 4.0, "heldout_t": step}
        log.write(json_text({**begun, "t": number, "more": "x" * chance.randrange(1_000, 2_000)}))
        assert path.stat().st_size <= MEGABYTE
    log.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def widest(places: Sequence[int]) -> float:
    """Return the largest gap, as a multiple of the mean one."""
    gaps = [after - before for before, after in pairwise(places)]
    return max(gaps) / fmean(gaps)


@pytest.mark.parametrize("evaluations", [60, 3_000])
def test_metrics_log_spans_a_long_run_evenly(tmp_path: Path, evaluations: int) -> None:
    """A long run once kept no line between the first one and those of the last hours."""
    numbers = [row["t"] for row in long_log(tmp_path / "metrics.jsonl", evaluations)]
    assert (numbers[0], numbers[-1]) == (0, 11_999)
    assert numbers == sorted({*numbers})
    assert numbers[-300:] == [*range(11_700, 12_000)], "all of the last"
    early = [number for number in numbers if number < 10_000]
    assert len(early) > 40
    assert widest(early) < 4


def test_metrics_log_keeps_the_first_look_at_each_evaluation(tmp_path: Path) -> None:
    steps = 60
    rows = long_log(tmp_path / "metrics.jsonl", steps)
    firsts = {row["heldout_t"]: row["t"] for row in reversed(rows)}
    expected = {step: -(-step * 12_000 // steps) for step in range(1, steps)}
    assert {step: firsts.get(step) for step in expected} == expected


def test_evaluations_that_are_too_many_are_thinned_out_evenly(tmp_path: Path) -> None:
    rows = long_log(tmp_path / "metrics.jsonl", 3_000)
    steps = sorted({row["heldout_t"] for row in rows} - {None})
    assert steps[0] < 100
    assert steps[-1] == 2_999
    assert widest([step for step in steps if step < 2_500]) < 4


def test_full_event_log_keeps_both_ends_of_every_trouble(tmp_path: Path) -> None:
    """A line without its partner would be an alert that never ended, or that never began."""
    pairs: list[tuple[EventKind, EventKind]]
    pairs = [("alert", "alert over"), ("durability", "durability"), ("band", "band")]
    troubles = list[tuple[str, str]]()
    file = MetricsLog(tmp_path / "events.jsonl", 1)
    status = a_status(islands=1)
    for number in range(20_000):
        at, beat = divmod(number, 500)
        kind = pairs[at % 3][beat // 250] if beat in (0, 250) else "loss"
        event = RunEvent(kind, f"reason {at}", "x" * 200).seen(status, 1.7e9 + number)
        if kind != "loss":
            troubles.append((kind, event["why"]))
        file.write(json_text(event))
    file.close()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    kept = [json.loads(line) for line in lines]
    assert 100 < len(kept) < 5_000
    assert [(each["kind"], each["why"]) for each in kept if each["kind"] != "loss"] == troubles


def test_line_of_a_status_has_its_time_and_evaluation_at_its_head() -> None:
    status = a_status(islands=64)
    status["heldout"] = [(40, 5.0), (50, math.pi)]
    line = metrics_line(status, 1.7e9 + 0.125).encode() + b"\n"
    assert stored_line(line) == StoredLine(len(line), 1.7e9 + 0.125, 50)
    status["heldout"] = []
    line = metrics_line(status, 5.0).encode()
    assert stored_line(line) == StoredLine(len(line), 5.0, None)
    for damaged in (b"", b"\n", line[:9], b"{torn", b'{"unix_s": 1' + b"0" * 30):
        assert stored_line(damaged) == StoredLine(len(damaged), None, None)


def test_lines_without_a_time_are_deleted_before_the_others() -> None:
    lines = [StoredLine(10, 3.0 * n if n % 2 else None, None) for n in range(1, 40)]
    assert kept_lines(lines, 10 * len(lines)) == {*range(39)}
    assert kept_lines(lines, 200) == {*range(0, 39, 2)}
    assert kept_lines(lines, 5) == {0}, "the first line stays whatever its size"
    assert kept_lines([], 5) == set()


def test_metrics_log_returns_to_its_limit_after_a_failed_attempt(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log, line = MetricsLog(path, 1), "x" * 10_000
    aside_of(path).symlink_to(
        tmp_path / "gone" / "file"
    )  # it cannot be opened, and is then removed
    for _ in range(150):
        log.write(line)
    assert path.stat().st_size > MEGABYTE, "the attempt has failed"
    for _ in range(1_000):
        log.write(line)
    log.close()
    assert path.stat().st_size <= MEGABYTE + len(line)


def test_last_look_is_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert last_look(path) is None
    path.write_text("half a")
    assert last_look(path) is None
    for lines in (["a"], ["a", "b"], ["x" * 200_000], ["b", "y" * 65_535], ["c", "z" * 65_536]):
        path.write_text("".join(f"{line}\n" for line in lines))
        assert last_look(path) == lines[-1]
        with path.open("a") as file:
            file.write("torn " * 20_000)
        assert last_look(path) == lines[-1]


def test_looks_continue_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"t": 1}\n{"t"')
    log = MetricsLog(path, 1)
    log.write('{"t": 2}')
    log.close()
    assert path.read_text().splitlines() == ['{"t": 1}', '{"t"', '{"t": 2}']


def test_sketch_is_short_and_has_both_ends() -> None:
    curve = [(t, 5.0 / (t + 1)) for t in range(300)]
    short = sketched(curve)
    assert len(short) == CURVE_SKETCHED
    assert (short[0], short[-1]) == (curve[0], curve[-1])
    assert short == sorted(short)
    assert sketched(curve[:7]) == curve[:7]


# --- measures -------------------------------------------------------------------------------------


def size(told: object) -> int:
    return len(json.dumps(told))


def test_measures_are_bounded() -> None:
    """Compare the size after a day of evaluations, faults and standstills with that after two."""
    measures = Measures("r", {A: "g"}, [30], Wire.BF16, now_s=0.0)
    rules, now_s, sizes = rule(), 0.0, list[int]()
    state = initial(rules)
    up_s = 0.0
    for _ in range(2):
        for _ in range(9_000):
            now_s += 10.0
            measures.evaluated(int(now_s), 3.0)
            measures.fault(A, now_s)
            measures.counts.recovery_s.append(1.0)
            life = Life(A, Incarnation(1))
            watched = measures.counts.watched(A)
            watched.fault_s, watched.fault_life = now_s, None
            measures.delivered(life, now_s)
            advanced(measures.counts, now_s - 2.0, now_s)
            up_s += 2.0
        sizes.append(size(measures.memory()))
    assert sizes[1] < 1.1 * sizes[0], "but for digits"
    counts = measures.counts
    assert (len(counts.up_spans), len(counts.recovery_s)) == (SPANS_KEPT, RECOVERIES_KEPT)
    assert CURVE_KEPT / 2 <= len(counts.heldout) <= CURVE_KEPT
    assert counts.heldout[-1][0] == int(now_s)
    assert counts.heldout[0][0] == 10
    shown = measures.status(rules, state, now_s)["figures"]
    assert shown is not None
    assert shown["uptime"] == pytest.approx(up_s / (now_s - counts.first_s), rel=1e-3)


def test_state_is_bounded_whatever_the_number_of_lives(tmp_path: Path) -> None:
    chance = seeded()
    config = config_for(4)
    crew = Crew(config, layout_of(config), tmp_path)
    sizes: list[int] = []
    for number in range(160):
        for _ in range(3):
            crew.step()
        life = chance.choice([*crew._done])
        crew.feed(Lost(life, "killed"))
        del crew._done[life]
        crew.feed(Join(life.island, "crew", crew.rule.fingerprint))
        if number % 40 == 39:
            sizes.append(size(freeze(crew.state)))
    crew.tape.close()
    assert crew.state.merges > 100
    assert max(life.incarnation for life in crew._done) > 120
    full = sizes[1:]  # the memory of each island is full after some eighty lives
    assert max(full) < 1.05 * min(full)


# --- notes ----------------------------------------------------------------------------------------


def hours_of(folder: Path, islands: Sequence[Island], hours: float) -> int:
    """Return the bytes by which the notes grow in `hours` hours without any event of the rules."""
    now_s = 0.0
    notes = Notes(Folder(folder), measures_from(now_s), lambda: now_s)
    before = notes.length
    lives = [Life(island, Incarnation(n)) for n, island in enumerate(islands)]
    while now_s < 3600 * hours:
        now_s += 1.0
        for life in lives:
            notes.vitals(life, Vitals(loss=2.0, computing_s=now_s))
        if now_s % 10 == 0:
            notes.evaluated(int(now_s), 3.123456789)
    grown = notes.length - before
    notes.close()
    return grown


def test_notes_grow_with_evaluations_but_not_with_reports_of_islands(tmp_path: Path) -> None:
    few = hours_of(tmp_path / "few", [Island("g-0")], 0.1)
    many = hours_of(tmp_path / "many", [Island(f"g-{n}") for n in range(16)], 0.1)
    assert few == many < 36 * 60
    assert (tmp_path / "many" / VITALS).stat().st_size < 16 * 400


def test_last_vitals_survive_two_deaths_of_the_syncer(tmp_path: Path) -> None:
    """The second death comes before the island has reported to the first successor."""
    told = Story(tmp_path)
    told.lives(9)
    told.notes.close()
    notes = read_notes(Folder(tmp_path))
    for _ in range(2):
        told.now_s += 5
        again = Notes(Folder(tmp_path), told.measures, lambda: told.now_s)
        b = Life(Island("b"), Incarnation(9))
        for _ in range(3):
            told.now_s += 1.5
            again.vitals(b, Vitals(loss=1.0, computing_s=0.5))
        again.close()
        notes = read_notes(Folder(tmp_path))
        assert [note.now_s for note in notes] == sorted(note.now_s for note in notes)
        said = [note.what for note in notes if note.kind == "vitals" and note.what[0][0] == "a"]
        assert said[-1][1]["computing_s"] >= 4.0
        assert (tmp_path / VITALS).exists()
    since = notes[-1].now_s
    kinds = [note.kind for note in read_notes(Folder(tmp_path), 0, since)]
    assert "vitals" not in kinds
    assert kinds.count("began") == 3
    (tmp_path / VITALS).write_text("torn")
    assert len(read_notes(Folder(tmp_path))) < len(notes)
    assert (tmp_path / NOTES).exists()
