"""Tests of the list of runs: owner, progress and cost of each, whatever its state."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from archipelago.cli.main import main
from cluster.fleet.metrics_row import metrics_line
from cluster.launch.run_list import listed_runs
from cluster.storage import runs
from cluster.storage.pids import born
from coordinator.errors import UserMistake
from tests.cluster.test_measures import A, Told
from tests.cluster.test_run_records import config_of

HOUR_S = 3600


def left(folder: Path, name: str, *, summary: dict[str, Any] | None = None, **tables: Any) -> Path:
    """Write the directory of a run with two islands that held devices for an hour."""
    islands = [{"group": "g", "count": 2, "usd_per_hour": 3.0, "resources": {"GPU": 2.0}}]
    (run_dir := folder / name).mkdir(parents=True)
    config = config_of(islands=islands, **tables)
    (run_dir / runs.CONFIG).write_text(config.toml())
    told = Told()
    a = told.join(0, A)
    for step in range(1, 11):
        told.report(step, a, step)
    status = told.status(HOUR_S)
    (run_dir / "metrics.jsonl").write_text(metrics_line(status, 1000.0) + "\n")
    if summary is not None:
        (run_dir / runs.SUMMARY).write_text(json.dumps(summary))
    return run_dir


def live(run_dir: Path) -> None:
    runs.announce(run_dir, runs.Live(run_dir.name, "n", "h:1", os.getpid(), born=born(os.getpid())))


def test_each_run_has_its_owner_progress_and_cost(tmp_path: Path) -> None:
    sent = {"up_bytes_per_token": 2.0, "down_bytes_per_token": 1.5}
    figures = {"tokens_trained": 500, "device_hours": 8.0, "usd": 24.0, **sent}
    left(tmp_path, "done", summary=figures, run={"owner": "ada", "steps": 60})
    left(tmp_path, "died", run={"priority": 5})
    live(left(tmp_path, "urgent", run={"priority": 7}))
    live(left(tmp_path, "usual"))
    rows = {each.run: each for each in listed_runs(tmp_path)}
    assert [*rows] == ["urgent", "usual", "died", "done"]
    assert (rows["done"].state, rows["done"].owner, rows["done"].t) == ("finished", "ada", 60)
    assert (rows["done"].tokens, rows["done"].usd) == (500, 24.0)
    assert rows["done"].egress_bytes == 500 * 3.5
    died = rows["died"]
    assert (died.state, died.owner, died.alive) == ("died", tmp_path.owner(), 0)
    assert died.tokens == 1000
    assert died.device_hours == pytest.approx(2 * 2.0), "two islands of two devices for an hour"
    assert died.usd == pytest.approx(2 * 2.0 * 3.0)
    assert (rows["usual"].state, rows["usual"].alive, rows["usual"].wanted) == ("live", 1, 2)


def test_run_that_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    left(tmp_path, "good")
    (left(tmp_path, "bad") / runs.CONFIG).write_text("[run]\nsteps = 0\n")
    good, bad = sorted(listed_runs(tmp_path), key=lambda each: each.state != "died")
    assert (good.run, bad.run, bad.state) == ("good", "bad", "unreadable")
    assert "problem" in bad.why


def test_egress_is_what_went_up_and_down(tmp_path: Path) -> None:
    run_dir = left(tmp_path, "busy")
    row = json.loads((run_dir / "metrics.jsonl").read_text())
    row["figures"] = {"up_bytes": 300, "down_bytes": 1200}
    (run_dir / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (found,) = listed_runs(tmp_path)
    assert found.egress_bytes == 1500


def test_starting_run_has_no_figures(tmp_path: Path) -> None:
    run_dir = left(tmp_path, "new")
    (run_dir / "metrics.jsonl").unlink()
    live(run_dir)
    (row,) = listed_runs(tmp_path)
    assert (row.state, row.wanted, row.t, row.usd) == ("live", 2, None, None)


def test_command_prints_a_table_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    left(tmp_path / "runs", "mine", run={"owner": "ada", "priority": 2})
    for arguments in (["list"], ["list", "runs", "--json"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert not ended.value.code
    out = capsys.readouterr().out
    table, _, text = out.partition('{"runs"')
    header, row = table.strip().splitlines()
    assert header.split()[:4] == ["run", "state", "owner", "priority"]
    assert row.split()[:-2] == ["mine", "died", "ada", "2", "0/2", "10/1000", "1.00k", "0B"]
    assert row.split()[-2:] == ["4.00", "12.00"]
    (found,) = json.loads('{"runs"' + text)["runs"]
    assert (found["owner"], found["usd"]) == ("ada", 12.0)


def test_missing_folder_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="is no folder"):
        listed_runs(tmp_path / "none")
