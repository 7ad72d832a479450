"""The records of a real run with a kill: identity, events, rows, report, timeline and trackers."""

from __future__ import annotations

import json
from pathlib import Path

import pandas  # pyright: ignore[reportMissingTypeStubs]
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cluster.config.load import load
from tests.lab.test_trace import validated
from tests.live.cli import TINY, Place, place, strict_json

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(300)]

SETTINGS = (
    "run.steps=60",
    "islands.0.step_s=1.0",  # so that the killed island is back before the end
    "faults.plan=[{at_step = 20, kind = 'kill', island = 'local-1'}]",
    "islands.0.usd_per_hour=3.6",
    'monitor.track=["tensorboard"]',
)


def test_run_with_a_kill_leaves_records_that_agree() -> None:
    with place() as here:
        check(here)


def check(here: Place) -> None:
    sets = [word for each in SETTINGS for word in ("--set", each)]
    finished = here.run("run", str(TINY), "--json", "--run-dir", str(here.run_dir), *sets)
    assert finished.code == 0, finished.err
    summary, run_dir = finished.json, here.run_dir

    config = load(run_dir / "config.toml")
    assert (summary["schema"], summary["run"], summary["seed"]) == (1, "run", config.run.seed)
    assert summary["config_sha256"] == config.sha256
    assert summary["versions"]["ray"].startswith("2.")
    assert (summary["parameters"] > 1000, summary["devices"]) == (True, 2)
    assert 0 < summary["device_hours"] <= 2 * summary["wall_s"] / 3600
    assert summary["usd"] == pytest.approx(3.6 * summary["device_hours"])

    rows = pandas.read_json(run_dir / "metrics.jsonl", lines=True)
    assert rows["heldout_loss"].iloc[-1] == pytest.approx(summary["sample_heldout_loss"])
    assert rows["unix_s"].is_monotonic_increasing
    assert rows["tokens_trained"].iloc[-1] == summary["tokens_trained"]

    events = [strict_json(each) for each in (run_dir / "events.jsonl").read_text().splitlines()]
    kinds = [each["kind"] for each in events if each["island"] == "local-1"]
    assert kinds[:4] == ["join", "fault", "loss", "join"]
    (fault,) = [each for each in events if each["kind"] == "fault"]
    assert fault["why"] == "the plan, at step 20"
    assert [each["kind"] for each in events][-1] == "phase"

    reported = here.run("report", str(run_dir), "--json")
    assert reported.json["runs"] == [{"run": "run", "state": "ended", "problems": []}]
    assert "local-1: kill on purpose" in Path(reported.json["file"]).read_text()

    traced = here.run("trace", str(run_dir), "--json")
    assert traced.json["problems"] == []
    timeline = validated(json.loads(Path(traced.json["file"]).read_text()))
    assert {"local-0", "local-1", "syncer", "shard-0"} <= {
        each["args"]["name"] for each in timeline if each["name"] == "thread_name"
    }
    assert any(each["ph"] == "i" and each["s"] == "g" for each in timeline), "the fault"
    chains = {each["id"] for each in timeline if each["ph"] == "t"}
    assert len(chains) > summary["merges"] / 2

    curves = EventAccumulator(str(run_dir / "tensorboard" / "t")).Reload()
    assert curves.Scalars("eval/loss")[-1].value == pytest.approx(summary["sample_heldout_loss"])
