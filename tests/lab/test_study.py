"""A study: its arms, axes and seeds, its refusals, and its results."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from archipelago.lab.study.cells import Broken, Cell, CellFiles, CellResult
from archipelago.lab.study.paired_statistics import gaps_percent, mean
from archipelago.lab.study.plan import Study, planned, read
from archipelago.lab.study.result import Result, summed
from archipelago.lab.study.text import curves, table
from archipelago.lab.study.training_jobs import found
from archipelago.lab.training.evaluations import Evaluation
from archipelago.lab.training.virtual_file import load
from cluster.config.values import Mode
from cluster.source import target_sha256, user_sha256
from coordinator.errors import UserMistake
from tests.given import LEAST, sums

EXAMPLES = Path(__file__).parents[2] / "examples" / "studies"
BASE = """
[task]
preset = "byte-tiny"
[[islands]]
count = 2
"""


def asked(text: str, *overrides: str) -> Study:
    return planned(tomllib.loads(text + BASE), origin="x", name="x", overrides=overrides)


def refused(text: str) -> list[str]:
    with pytest.raises(UserMistake) as refusal:
        asked(text)
    return [line.strip() for line in str(refusal.value).splitlines()]


def made(loss: float, *, failed: str = "", curve: tuple[Evaluation, ...] = ()) -> CellResult:
    figures = {"heldout_loss": loss, "tokens_trained": 100, "wall_s": 2.0, "goodput": loss / 10}
    return CellResult(figures, curve, failed, 1.0, "source")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_example_studies_are_valid(path: Path) -> None:
    study = read(path)
    assert study.cells
    assert study.name == path.stem


# --- the file -----------------------------------------------------------------------------------


def test_empty_study_is_its_base_with_four_seeds() -> None:
    study = asked("")
    (row,) = study.rows
    assert [cell.seed for cell in row.cells] == [0, 1, 2, 3]
    assert (row.label, study.folder) == ("x", Path("studies/x"))


def test_grid_has_every_point_with_every_seed() -> None:
    study = asked('[study]\nseeds = [3, 5]\n[axes]\nsync.every = [8, 24]\n"sync.quorum" = [1, 2]\n')
    assert [dict(row.point) for row in study.rows] == [
        {"sync.every": h, "sync.quorum": k} for h in (8, 24) for k in (1, 2)
    ]
    assert len(study.cells) == 8
    last = study.rows[-1].cells[-1].config
    assert (last.sync.every, last.sync.quorum, last.run.seed) == (24, 2, 5)


def test_arms_have_their_own_settings_and_axes() -> None:
    study = asked("""
[study]
seeds = 2
against = "dp"
[axes]
sync.every = [8, 24]
[[arms]]
name = "dp"
set = { run.mode = "data-parallel" }
axes = { optimizer.learning_rate = [1e-2, 2e-2, 4e-2] }
[[arms]]
name = "ours"
set = { sync.merge = "rda" }
""")
    told = [(row.arm, dict(row.point)) for row in study.rows]
    rates = [("dp", {"optimizer.learning_rate": rate}) for rate in (1e-2, 2e-2, 4e-2)]
    assert told == [*rates, *(("ours", {"sync.every": every}) for every in (8, 24))], (
        "data-parallel has no use for the axis of H, and is trained once"
    )
    assert {row.cells[0].mode for row in study.rows[:3]} == {Mode.DATA_PARALLEL}
    assert all(row.cells[0].config.sync.merge == "rda" for row in study.rows[3:])


def test_mode_overrides_the_base_but_not_the_arms_own_settings() -> None:
    both = '[sync]\nfragments = 4\nevery = 8\n[[arms]]\nname = "d"\n'
    (row,) = asked(both + 'set = { run.mode = "diloco" }\n').rows
    sync = row.cells[0].config.sync
    assert (sync.fragments, sync.every, sync.overlap, sync.quorum) == (1, 8, 0, 2)
    (_, line, *more) = refused(both + 'set = { run.mode = "diloco", sync.fragments = 4 }\n')
    assert line.startswith('sync.fragments: 4 is not for run.mode = "diloco"')
    assert line.endswith("(at d)")
    assert not more


def test_bucket_is_refused_as_the_folder_of_a_study() -> None:
    (_, line) = refused('[study]\ndir = "gs://bucket/studies"\n')
    assert line.startswith("study.dir: gs://bucket/studies is not on this machine")


def test_reports_every_mistake_at_once() -> None:
    lines = refused("""
[study]
seeds = [1, 1]
against = "dpp"
mesure = "goodput"
[axes]
sync.evry = [8]
sync.every = []
sync.quorum = 2
run.seed = [1]
optimizer.momentum = [0.9, 0.9]
[[arms]]
name = "dp"
set = { sync.overlap = 9 }
[[arms]]
name = "dp"
axes = { sync.overlap = [1], sync.fragments = [9] }
[virtual]
jiter = 0.1
""")
    assert lines[0] == f"x: {len(lines) - 1} problems"
    told = "\n".join(lines)
    for words in (
        "study.mesure: is not known; did you mean measure?",
        "axes.sync.every: has no values, so the grid is empty",
        "axes.sync.quorum: must be a list of values, given 2",
        "axes.run.seed: seeds are no axis",
        "axes.optimizer.momentum: [0.9, 0.9] has a value twice",
        'arms: "dp" is the name of 2',
        "sync.evry: is not known; did you mean every? (at all 2 points)",
        'study.against: "dpp" is no arm; did you mean dp?',
        "sync.overlap: 9 steps would reach",
        "virtual.jiter: is not known; did you mean jitter?",
    ):
        assert words in told, words


def test_mistakes_in_the_study_table_do_not_hide_impossible_cells() -> None:
    lines = refused(
        "[study]\nseeds = []\n[sync]\nevery = 8\n"
        "[axes]\nsync.overlap = [1, 9]\nsync.quorum = [1, 9]\n"
    )
    told = "\n".join(lines)
    assert "study.seeds" in told
    assert "sync.overlap: 9 steps would reach the fragment's next round" in told
    assert "(at x: sync.overlap = 9, sync.quorum = 1 and 1 more)" in told
    assert "sync.quorum: no round could ever close" in told


def test_refuses_faults_that_virtual_time_lacks() -> None:
    plan = '[faults]\nplan = [{at_step = 5, kind = "kill", island = "syncer"}]\n'
    (_, line) = refused(plan)
    assert line.startswith("faults.plan: the kill of syncer at step 5: virtual time has no")


def test_refuses_to_read_a_corpus_that_may_not_leave_its_region() -> None:
    """All islands of a virtual run are on the machine that starts it, and so is its evaluator."""
    kept = (
        '[[islands]]\ngroup = "eu"\nregion = "eu"\n[[islands]]\ngroup = "us"\nregion = "us"\n'
        '[regions.eu]\ndata = "/corpus/eu"\n[regions.us]\ndata = "/corpus/us"\n'
        'may_leave = ["delta", "report", "corpus"]\n'
    )
    (line,) = [each for each in refused(kept) if each.startswith("regions.")]
    assert line.startswith(
        "regions.eu.may_leave: virtual time reads /corpus/eu on this machine, and it has no "
        '"corpus"'
    )


def test_command_line_can_change_the_base() -> None:
    study = asked("[study]\nseeds = 1\n", "run.steps=40", "virtual.jitter=0.5")
    (cell,) = study.cells.values()
    assert (cell.config.run.steps, cell.virtual.jitter) == (40, 0.5)


def test_mode_on_the_command_line_overrides_the_base_like_one_in_the_file() -> None:
    for given in ("run.mode=diloco", 'run.mode = "diloco"'):
        (row,) = asked("[sync]\nfragments = 4\nevery = 8\n", given).rows
        config = row.cells[0].config
        assert (config.run.mode, config.sync.fragments) == (Mode.DILOCO, 1)


def test_command_line_can_change_seeds_and_axes() -> None:
    text = "[study]\nseeds = 8\n[axes]\nsync.every = [8, 24]\n"
    study = asked(text, "study.seeds=[5]", "axes.sync.every=[12]", "axes.sync.quorum=[1, 2]")
    assert study.seeds == (5,)
    points = [(c.config.sync.every, c.config.sync.quorum) for c in study.cells.values()]
    assert points == [(12, 1), (12, 2)]


def test_reports_mistakes_on_the_command_line() -> None:
    with pytest.raises(UserMistake) as found:
        asked("[study]\nseeds = 8\n", "study.seeds=0", "study.sedes=3", "axes.sync.every=8")
    for words in ("study.seeds", "study.sedes: is not known", "axes.sync.every: must be a list"):
        assert words in str(found.value)


# --- cells --------------------------------------------------------------------------------------


def cell_of(*overrides: str) -> Cell:
    (cell,) = asked("[study]\nseeds = 1\n", *overrides).cells.values()
    return cell


def test_cell_key_depends_on_what_it_trains() -> None:
    one = cell_of()
    assert one.key == cell_of("run.name=other", "monitor.refresh_s=2.0", "run.dir=there").key
    others = {
        cell_of(each).key
        for each in ("sync.every=9", "virtual.jitter=0.5", "data.window=64", "run.steps=7")
    }
    assert len({one.key, *others}) == 5


def test_cell_key_depends_on_the_source_of_the_users_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    keys = []
    for text in ("rate = 1\n", "rate = 2\n", "rate = 1\n"):
        (tmp_path / "code_of_a_study.py").write_text(text)
        user_sha256.cache_clear()
        target_sha256.cache_clear()
        target = "optimizer.target=code_of_a_study:made"
        keys.append(cell_of(target, "optimizer.learning_rate=0.1").key)
    assert keys[0] == keys[2] != keys[1]


def test_cell_file_is_found_again_and_has_its_command(tmp_path: Path) -> None:
    files, cell = CellFiles(tmp_path), cell_of("virtual.look_every=5")
    assert files.find(cell.key) is None
    path = files.ask(cell)
    assert files.command(cell.key) == f"python -m archipelago.lab.training {path}"
    assert load(path) == (cell.config, cell.virtual)
    it = made(1.5, curve=(Evaluation(5, 1.0, 50, 2.0), Evaluation(10, 2.0, 100, math.nan)))
    files.keep(cell.key, it)
    back = files.find(cell.key)
    assert back is not None
    assert (back.figures, back.failed, back.took_s) == (it.figures, it.failed, it.took_s)
    assert back.curve[0] == it.curve[0]
    assert math.isnan(back.curve[1].heldout_loss)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1, "key": "x"}', '{"format": 9, "key": "{key}"}']
)
def test_broken_cell_files_are_refused_all_at_once(tmp_path: Path, text: str) -> None:
    files = CellFiles(tmp_path)
    cells = {cell.key: cell for cell in (cell_of(), cell_of("run.steps=7"))}
    for key in cells:
        files.result_path(key).write_text(text.replace("{key}", key))
        with pytest.raises(Broken):
            files.find(key)
    with pytest.raises(UserMistake) as refusal:
        found(files, cells, retry=False)
    lines = str(refusal.value).splitlines()
    assert lines[0] == f"{tmp_path}: 2 problems"
    for key, line in zip(cells, lines[1:], strict=True):
        assert str(files.result_path(key)) in line


def test_failed_cell_is_kept_unless_it_is_retried(tmp_path: Path) -> None:
    files, cell = CellFiles(tmp_path), cell_of()
    files.keep(cell.key, made(1.0, failed="it diverged"))
    assert [*found(files, {cell.key: cell}, retry=False)] == [cell.key]
    assert not found(files, {cell.key: cell}, retry=True)


# --- results ----------------------------------------------------------------------------------


def test_interval_is_students_t() -> None:
    samples = [1.0, 1.2, 0.9, 1.4, 1.1]
    interval = stats.t.interval(0.95, 4, loc=1.12, scale=stats.sem(samples))
    told = mean(samples)
    assert (told.value, told.samples) == (pytest.approx(1.12), 5)
    assert (told.low, told.high) == pytest.approx(interval)
    assert mean([2.0]).high == math.inf
    assert math.isnan(mean([]).value)


def test_gaps_omit_pairs_without_a_figure() -> None:
    assert gaps_percent([1.1, math.nan, 2.0], [1.0, 1.0, 4.0]) == pytest.approx([10, -50])


TWO_ARMS = """
[study]
seeds = 3
against = "dp"
[axes]
data.window = [64, 128]
[[arms]]
name = "dp"
set = { run.mode = "data-parallel" }
axes = { optimizer.learning_rate = [1e-2, 2e-2, 4e-2] }
[[arms]]
name = "ours"
axes = { sync.every = [8, 24] }
"""


def result(losses: Mapping[tuple[str, float, int], tuple[float, ...]]) -> Result:
    """Return the result of `TWO_ARMS`: losses per seed, by arm, the arm's own axis, and window."""
    study = asked(TWO_ARMS)
    there: dict[str, CellResult] = {}
    for row in study.rows:
        _, own = row.point["data.window"], [v for p, v in row.point.items() if p != "data.window"]
        for cell, loss in zip(
            row.cells, losses[row.arm, float(str(own[0])), int(str(row.point["data.window"]))],
            strict=True,
        ):  # fmt: skip
            if not math.isnan(loss):
                curve = (Evaluation(10, 1.0, 50, loss + 1), Evaluation(20, 2.0, 100, loss))
                there[cell.key] = made(loss, curve=curve)
    return summed(study, there)


LOSSES: dict[tuple[str, float, int], tuple[float, ...]] = {
    ("dp", 1e-2, 64): (3.0, 3.1, 3.2), ("dp", 2e-2, 64): (2.0, 2.2, 2.4),
    ("dp", 4e-2, 64): (3.0, 3.0, 3.0), ("dp", 1e-2, 128): (1.0, 1.1, 1.2),
    ("dp", 2e-2, 128): (1.5, 1.5, 1.5), ("dp", 4e-2, 128): (0.5, math.nan, 0.5),
    ("ours", 8, 64): (2.2, 2.42, 2.64), ("ours", 24, 64): (2.4, 2.6, 3.0),
    ("ours", 8, 128): (1.02, 1.1, 1.26), ("ours", 24, 128): (2.0, math.nan, 2.0),
}  # fmt: skip


def test_each_point_is_compared_by_seed_with_the_best_of_the_other_arm() -> None:
    lines = {tuple(line.row.point.values()): line for line in result(LOSSES).lines}
    gap = lines[64, 8].gap
    assert gap is not None
    assert (gap.value, gap.low, gap.high) == pytest.approx((10, 10, 10))
    assert lines[64, 2e-2].gap is None
    assert (lines[64, 2e-2].best, lines[64, 2e-2].enclosed) == (True, True)
    gap = lines[128, 8].gap
    assert gap is not None
    assert gap.value == pytest.approx((2 + 0 + 5) / 3)
    assert (lines[128, 1e-2].best, lines[128, 1e-2].enclosed) == (True, False), (
        "the one that lacks a seed is none to be compared with"
    )
    assert lines[128, 24].missing == [1]
    assert lines[128, 24].measured.samples == 2


def test_text_and_json_agree() -> None:
    told = result(LOSSES)
    plain = json.loads(json.dumps(told.json()))
    assert (plain["cells"], plain["missing"], plain["failed"]) == (30, 2, 0)
    assert len(plain["rows"]) == 10
    row = next(r for r in plain["rows"] if r["arm"] == "ours" and r["gap_percent"] > 9)
    assert row["point"] == {"data.window": 64, "sync.every": 8}
    assert row["curve"][-1] == {
        "t": 20, "time_s": 2.0, "tokens": 100.0, "heldout_loss": pytest.approx(2.42),
    }  # fmt: skip
    text = table(told)
    (line,) = (each for each in text.splitlines() if "sync.every = 8" in each and "64" in each)
    assert "ours: data.window = 64, sync.every = 8 *^" in line
    assert "+10.00 %" in line
    assert "widen the axis" in text
    assert "2 cells are missing" in text
    assert curves(told).splitlines()[0].split() == ["held-out", "loss", "at", "step", "10", "20"]


def test_each_mode_is_reported_at_its_best_if_comparable() -> None:
    """The keys are those of `bench parity`."""
    assert "data_parallel_loss" not in result(LOSSES).json(), "two windows: two places"
    study = asked(TWO_ARMS.replace("[axes]\ndata.window = [64, 128]\n", ""))
    there: dict[str, CellResult] = {}
    losses = {1e-2: (3.0, 3.1, 3.2), 2e-2: (2.0, 2.2, 2.4), 8: (2.2, 2.42, 2.64), 24: (2.4, 3, 3)}
    for row in study.rows:
        (at,) = row.point.values()
        for cell, loss in zip(row.cells, losses.get(float(str(at)), ()), strict=False):
            there[cell.key] = made(loss)
    told = summed(study, there).json()
    assert told["data_parallel_loss"] == pytest.approx(2.2)
    assert told["decoupled_loss"] == pytest.approx(2.42)
    assert told["decoupled_arm"] == "ours: sync.every = 8", "the figure says whose it is"
    assert told["data_parallel_arm"] == "dp: optimizer.learning_rate = 0.02"
    ends = [told[f"gap_percent{end}"] for end in ("_low", "", "_high")]
    assert ends == pytest.approx([10, 10, 10])
    assert not [name for name in told if name.startswith(("diloco", "elastic"))]


def test_some_measures_are_maximized() -> None:
    study = asked(TWO_ARMS.replace("seeds = 3", 'seeds = 1\nmeasure = "goodput"'))
    rows = [row for row in study.rows if row.arm == "dp" and row.point["data.window"] == 64]
    there = {row.cells[0].key: made(loss) for row, loss in zip(rows, (1.0, 3.0, 2.0), strict=True)}
    best = [line.row.point for line in summed(study, there).lines if line.best]
    assert best[0]["optimizer.learning_rate"] == 2e-2


def test_report_of_a_study_has_its_rows_and_the_opponent(tmp_path: Path) -> None:
    from archipelago.lab.report.written import write_study_report

    now = datetime(2026, 11, 26, tzinfo=UTC)
    text = write_study_report(result(LOSSES), tmp_path, now).read_text()
    assert ">ours" in text, "a row of the arm"
    assert "over dp, %" in text
    assert (tmp_path / "report.html").stat().st_size < 2_000_000


def test_draws_pictures_of_curves_and_gaps(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from archipelago.lab.study.pictures import drawn

    files = drawn(result(LOSSES), tmp_path)
    assert [file.name for file in files] == ["curves.svg", "gaps.svg"]
    text = files[1].read_text()
    assert "ours: data.window = 64, sync.every = 8" in text
    before = [file.read_bytes() for file in files]
    assert before == [file.read_bytes() for file in drawn(result(LOSSES), tmp_path)]


# --- a whole study ------------------------------------------------------------------------------

WHOLE = """
[study]
name = "whole"
dir = "{folder}"
seeds = 2
against = "dp"
[run]
steps = 8
[[islands]]
count = 2
batch_size = 2
[virtual]
look_every = 4
[[arms]]
name = "dp"
set = {{ run.mode = "data-parallel" }}
[[arms]]
name = "wild"
set = {{ optimizer.learning_rate = 1e30 }}
[[arms]]
name = "ours"
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_study_runs_once_and_reports_failed_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from archipelago.cli.main import main

    path = tmp_path / "study.toml"
    model = LEAST.replace("SOURCE", str(sums(tmp_path / "text")))
    path.write_text(WHOLE.format(folder=tmp_path) + model)
    folder = tmp_path / "whole"

    def run() -> tuple[int, dict[str, Any], str]:
        with pytest.raises(SystemExit) as ended:
            main(["study", str(path), "--jobs", "2", "--json"])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, json.loads(said.out), said.err

    code, told, _ = run()
    rows = {row["arm"]: row for row in told["rows"]}
    assert (code, told["cells"], told["missing"], told["failed"]) == (1, 6, 0, 2)
    assert set(rows["wild"]["failed"]) == {"0", "1"}
    assert math.isfinite(rows["ours"]["gap_percent"])
    assert rows["ours"]["pairs"] == 2
    assert [look["t"] for look in rows["ours"]["curve"]] == [4, 8]
    assert "ours" in (folder / "table.txt").read_text()
    before = {each: each.read_bytes() for each in (folder / "cells").iterdir()}
    assert len(before) == 12
    code, again, err = run()
    assert again == told
    assert "6 of them are there already" in err
    assert {each: each.read_bytes() for each in (folder / "cells").iterdir()} == before


def test_refuses_a_run_configuration_as_study(tmp_path: Path) -> None:
    path = tmp_path / "demo.toml"
    path.write_text("[run]\nsteps = 4\n[[islands]]\ncount = 2\n")
    with pytest.raises(
        UserMistake, match=r"none of the tables \[study\], \[axes\], \[arms\]: it is"
    ):
        read(path)


def test_key_at_its_default_keeps_finished_cells() -> None:
    """Every earlier study has a new key at its default."""
    plain = [cell.key for cell in asked("").rows[0].cells]
    said = asked("[run]\nsteps = 300\n[sync]\nmax_staleness = 8\n", "durability.hang_s=7")
    config = asked("").rows[0].cells[0].config
    assert (config.run.steps, config.sync.max_staleness) == (300, 8), "they are the defaults"
    assert [cell.key for cell in said.rows[0].cells] == plain
    other = asked("[sync]\nmax_staleness = 7\n")
    assert not {cell.key for cell in other.rows[0].cells} & {*plain}
