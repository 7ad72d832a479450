"""`bench faults --levels` kills by one plan in all modes, and its figures follow from the files."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from archipelago.cli.main import main
from archipelago.lab.bench.fault_levels_files import (
    RunFiles,
    Stall,
    goodput,
    kills_between,
    plan_began_s,
    read_files,
    recovery_of,
    stalls,
    tokens_of,
)
from archipelago.lab.bench.fault_levels_plan import SPACING_S, Kill, kill_plan, parse_levels
from archipelago.lab.bench.fault_levels_simulated import Recoveries, SimulatedWindow, simulated
from archipelago.lab.bench.fault_levels_written import csv_text, write
from cluster.config.values import Mode
from coordinator.errors import RunFailed, UserMistake

NAMES = ("local-0", "local-1", "local-2", "local-3")
MODES = (Mode.DECOUPLED, Mode.ELASTIC, Mode.DATA_PARALLEL)

# --- levels and plans -----------------------------------------------------------------------------


def test_levels_are_a_list_of_numbers() -> None:
    assert parse_levels("0, 1,2.5") == (0.0, 1.0, 2.5)


def test_wrong_levels_are_refused_all_at_once() -> None:
    with pytest.raises(UserMistake) as refused:
        parse_levels("0,many,-1,9,0")
    text = str(refused.value)
    for word in ("'many'", "-1 is not between 0 and 6", "9 is not", "0 is there twice"):
        assert word in text


@pytest.mark.parametrize("level", [0.5, 1, 2, 4, 6])
def test_plan_has_exactly_its_level_and_leaves_time_to_return(level: float) -> None:
    for seed in range(20):
        plan = kill_plan(level, NAMES, 60.0, seed)
        assert len(plan) == 4 * level
        assert plan == tuple(sorted(plan))
        assert all(0 <= kill.at_s <= 60 for kill in plan)
        for name in NAMES:
            times = [kill.at_s for kill in plan if kill.island == name]
            assert abs(len(times) - level) < 1
            assert all(b - a >= SPACING_S - 1e-9 for a, b in pairwise(times))


def test_plan_depends_on_its_arguments_only() -> None:
    assert kill_plan(2, NAMES, 60.0, 7) == kill_plan(2, NAMES, 60.0, 7)
    assert kill_plan(2, NAMES, 60.0, 7) != kill_plan(2, NAMES, 60.0, 8)
    assert kill_plan(0, NAMES, 60.0, 7) == ()


def test_level_without_a_kill_is_refused() -> None:
    with pytest.raises(UserMistake, match=r"0\.1 kills .* longer windows"):
        kill_plan(0.1, NAMES, 50.0, 0)


# --- files ----------------------------------------------------------------------------------------


def look(
    at_s: float, t: int, merged: int = 0, trained: int = 0, victim: int = 0
) -> dict[str, object]:
    islands = [{"island": "local-0", "steps": t}, {"island": "local-1", "steps": victim}]
    figures = {"tokens_merged": merged}
    return {
        "elapsed_s": at_s, "t": t, "tokens_trained": trained, "islands": islands,
        "figures": figures,
    }  # fmt: skip


def fault(at_s: float, island: str) -> dict[str, object]:
    return {"kind": "fault", "elapsed_s": at_s, "island": island}


def test_files_are_read_without_a_torn_line(tmp_path: Path) -> None:
    whole = [look(1.0, 1), {**look(2.0, 2), "figures": None}, look(3.0, 3)]
    text = "".join(json.dumps(each) + "\n" for each in whole)
    (tmp_path / "metrics.jsonl").write_text(text + '{"elapsed_s": 4')
    files = read_files(tmp_path)
    assert [each["elapsed_s"] for each in files.looks] == [1.0, 3.0]
    assert files.events == []


def test_kills_are_those_of_the_span() -> None:
    events = [fault(1.0, "a"), {"kind": "join", "elapsed_s": 2.0, "island": "a"}, fault(5.0, "b")]
    assert kills_between(RunFiles([], events), 0.0, 5.0) == [Kill(1.0, "a")]


def test_plan_begins_before_its_kills_although_some_were_refused() -> None:
    plan = [Kill(2.0, "a"), Kill(3.0, "b"), Kill(7.0, "a")]
    assert plan_began_s(plan, [Kill(102.4, "a"), Kill(107.1, "a")]) == pytest.approx(100.1)
    with pytest.raises(RunFailed, match="none of 3"):
        plan_began_s(plan, [])


def test_tokens_are_those_of_the_window() -> None:
    files = RunFiles([look(0, 0), look(10, 0, 100, 200), look(20, 0, 50, 400)], [])
    assert tokens_of(files, 5.0, 10.0) == (50.0, 100.0)
    assert tokens_of(files, 10.0, 20.0) == (-50.0, 200.0)  # it went back to a snapshot
    assert goodput(-50.0, 10.0, 10.0) == 0.0
    assert goodput(25.0, 10.0, 10.0) == 0.25


def test_stalls_are_missing_steps() -> None:
    steady = [(s / 2, float(s // 2)) for s in range(20)]  # looks twice for each step of a second
    assert stalls(steady, 1.0) == []
    stopped = [*steady, (18.0, 10.0), (19.0, 11.0)]
    assert stalls(stopped, 1.0) == [Stall(9.0, 8.0)]
    went_back = [*steady, (15.0, 5.0), (16.0, 5.0), (18.0, 6.0)]
    assert stalls(went_back, 1.0) == [Stall(9.0, 8.0)]


def test_recovery_is_read_from_the_steps_of_each_mode() -> None:
    """Killed at 10 s: the job stops for 4 s, and again for 5 s when the island is back."""
    looks = [look(float(s), s, victim=s) for s in range(11)]
    looks += [look(14.0 + s, 10 + s, victim=10) for s in range(1, 7)]
    looks += [look(26.0 + s, 17 + s, victim=10 + s) for s in range(5)]
    files, spans = RunFiles(looks, []), [(0.0, 30.0)]
    job = recovery_of(files, Mode.ELASTIC, "local-1", spans, 1.0)
    assert (job.shrink_s, job.grow_s, job.back_s) == (4.0, 5.0, 10.0)
    assert recovery_of(files, Mode.DATA_PARALLEL, "local-1", [(0.0, 20.0)], 1.0).back_s == 4.0
    island = recovery_of(files, Mode.DECOUPLED, "local-1", spans, 1.0)
    assert island == Recoveries(16.0, 0.0, 0.0)
    with pytest.raises(RunFailed, match="no step is missing"):
        recovery_of(files, Mode.DATA_PARALLEL, "local-1", [(0.0, 9.0)], 1.0)


# --- simulation -----------------------------------------------------------------------------------


def window(*kills: Kill) -> SimulatedWindow:
    return SimulatedWindow(kills, NAMES, 10.0, 110.0, 0.5, every=8, snapshot_steps=4)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_lost_without_kills(mode: Mode) -> None:
    assert simulated(mode, window(), Recoveries(6.0, 2.0, 3.0)) == pytest.approx(1.0)


def test_each_mode_loses_what_one_kill_costs_it() -> None:
    kill, times = Kill(50.0, "local-2"), Recoveries(6.0, 2.0, 3.0)
    # one of four islands is away for 6 s, and loses half of the 4 s between two hand-ins
    assert simulated(Mode.DECOUPLED, window(kill), times) == pytest.approx(1 - (6 + 2) / 400)
    # all stop for 2 and 3 s, and the job has three quarters of its islands in between
    lost_s = 2 + 3 + (6 - 2) / 4
    assert simulated(Mode.ELASTIC, window(kill), times) == pytest.approx(1 - lost_s / 100)
    # all stop for 6 s; the snapshot was taken at 50 s
    assert simulated(Mode.DATA_PARALLEL, window(kill), times) == pytest.approx(0.94)
    later = window(Kill(51.5, "local-2"))
    assert simulated(Mode.DATA_PARALLEL, later, times) == pytest.approx(0.94 - 0.015)


def test_kill_of_an_island_that_is_out_begins_the_wait_again() -> None:
    twice = window(Kill(50.0, "local-2"), Kill(54.0, "local-2"))
    times = Recoveries(6.0, 2.0, 3.0)
    assert simulated(Mode.DATA_PARALLEL, twice, times) == pytest.approx(0.90)
    assert simulated(Mode.DECOUPLED, twice, times) == pytest.approx(1 - (10 + 2) / 400)


def test_kill_before_the_window_costs_what_is_left_of_it() -> None:
    early = window(Kill(8.0, "local-0"))
    assert simulated(Mode.DATA_PARALLEL, early, Recoveries(6.0, 2.0, 3.0)) == pytest.approx(0.96)


@pytest.mark.parametrize("level", [1, 2, 4])
def test_decoupled_keeps_most_and_a_rigid_job_least(level: float) -> None:
    kept = [
        simulated(mode, window(*kill_plan(level, NAMES, 110.0, seed)), times)
        for seed in range(10)
        for mode, times in zip(
            MODES,
            (Recoveries(6.0, 0.0, 0.0), Recoveries(6.0, 2.0, 2.0), Recoveries(8.0, 0.0, 0.0)),
            strict=True,
        )
    ]
    decoupled, elastic, rigid = (sum(kept[i::3]) / 10 for i in range(3))
    assert 1 > decoupled > elastic > rigid >= 0


# --- what is written ------------------------------------------------------------------------------


def figures() -> dict[str, object]:
    rows = [
        {
            "mode": mode.value, "level": level, "steps_between_kills": None,
            "goodput": 0.9 / (1 + level), "simulated": 1.0 / (1 + level),
        }
        for mode in MODES
        for level in (0.0, 2.0)
    ]  # fmt: skip
    return {"islands": 4, "rows": rows}


def test_csv_has_the_rows_with_empty_cells_for_unknown_values() -> None:
    told = figures()
    assert isinstance(told["rows"], list)
    first, *_ = csv.DictReader(io.StringIO(csv_text(told["rows"])))
    assert first["mode"] == "decoupled"
    assert first["steps_between_kills"] == ""
    assert float(first["goodput"]) == 0.9


def test_json_and_pictures_show_each_mode(tmp_path: Path) -> None:
    told = figures()
    files = write(tmp_path, told)
    assert [path.name for path in files] == [
        "faults.json", "faults.csv", "faults-light.svg", "faults-dark.svg",
    ]  # fmt: skip
    assert json.loads(files[0].read_text()) == told
    for path in files[2:]:
        words = " ".join(ElementTree.parse(path).getroot().itertext())
        for label in ("decoupled, on Ray", "elastic data-parallel, simulated", "data-parallel"):
            assert label in words


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["bench", "faults", *arguments])
    assert end.value.code == 2
    return capsys.readouterr().err


def test_options_of_the_other_form_are_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mixed = refused(capsys, "--levels", "0,1", "--pairs", "2", "--kill-every", "9")
    assert "--kill-every, --pairs" in mixed
    assert "--seed, --out" in refused(capsys, "--seed", "2", "--out", str(tmp_path))
    assert "needs 30 s or more" in refused(capsys, "--for", "12")
    assert "'x' is not a number" in refused(capsys, "--levels", "0,x")
    (tmp_path / "file").touch()
    nowhere = refused(capsys, "--levels", "0", "--out", str(tmp_path / "file" / "there"))
    assert "name another folder" in nowhere
