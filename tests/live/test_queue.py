"""The queue on a real cluster: a run takes an island from a less important one, and returns it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.cli import ROOT, TINY, finish, last_status, until
from tests.live.test_cluster import Raylets, up

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(580)]
QUOTAS = "[owners.ada]\nislands = 3\n"
ON_ONE_NODE = (
    "--set", 'islands.0.label_selector={region = "us"}', "--set", "islands.0.resources={CPU = 1.0}",
    "--set", "run.owner=ada",
)  # fmt: skip
EVERYWHERE = ("islands.0.count=4", 'islands.0.label_selector={region = "in(eu,us)"}')
"""Four islands, for which the cluster has room and their owner no quota."""


def submission(cluster: Raylets, name: str, *sets: str) -> subprocess.Popen[str]:
    parts = [part for each in sets for part in ("--set", each)]
    command = ["submit", str(TINY), "--address", cluster.jobs, "--set", f"run.name={name}"]
    return subprocess.Popen(
        [sys.executable, "-m", "archipelago", *command, *ON_ONE_NODE, *parts],
        cwd=ROOT,
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_dir(cluster: Raylets, name: str) -> Path:
    return cluster.here.folder / "archipelago" / "runs" / name


def contributing(cluster: Raylets, name: str) -> set[str]:
    told = last_status(run_dir(cluster, name)).get("islands", ())
    return {
        each["island"] for each in told if each["state"] == "live" and each["contributions"] > 0
    }


def queue(cluster: Raylets, *arguments: str) -> dict[str, Any]:
    finished = cluster.run("queue", "--address", cluster.address, "--json", *arguments)
    assert finished.code == 0, finished.err
    return finished.json


def drains(cluster: Raylets, name: str) -> list[dict[str, Any]]:
    lines = (run_dir(cluster, name) / "events.jsonl").read_text().splitlines()
    return [event for line in lines if (event := json.loads(line))["kind"] == "drain"]


def test_important_run_takes_an_island_and_gives_it_back(tmp_path: Path) -> None:
    """The queue's process is killed in between, and forgets nothing."""
    (quotas := tmp_path / "quotas.toml").write_text(QUOTAS)
    both = {"local-0", "local-1"}
    with up() as (cluster, _):
        assert queue(cluster, "--set", str(quotas))["runs"] == []
        crawl = submission(
            cluster, "crawl", "run.steps=1000000", "islands.0.opportunistic=true",
            "islands.0.step_s=0.1",
        )  # fmt: skip
        until(lambda: contributing(cluster, "crawl") == both or crawl.poll() is not None)
        assert crawl.poll() is None, finish(crawl).out
        big = submission(
            cluster, "big", "run.priority=10", "run.steps=160", "islands.0.count=1",
            "islands.0.step_s=0.1",
        )  # fmt: skip
        until(lambda: contributing(cluster, "big") or big.poll() is not None)
        assert big.poll() is None, finish(big).out
        during = queue(cluster)
        (process,) = (p for p, line in cluster.here.left_running().items() if "QueueActor" in line)
        os.kill(process, signal.SIGKILL)
        refused = finish(submission(cluster, "never", *EVERYWHERE))
        ended = finish(big)
        until(lambda: contributing(cluster, "crawl") == both)
        after = queue(cluster)
        assert cluster.run("stop", "crawl", "--address", cluster.address).code == 0
        stopped = finish(crawl)
        drained = drains(cluster, "crawl")
        summaries = [
            json.loads((run_dir(cluster, name) / "summary.json").read_text())
            for name in ("crawl", "big")
        ]

    rows = {each["run"]: each for each in during["runs"]}
    assert [*rows] == ["big", "crawl"]
    assert (rows["big"]["state"], rows["big"]["held"]) == ("live", 1)
    assert (rows["crawl"]["held"], rows["crawl"]["withheld"]) == (1, ["local-1"])
    assert rows["crawl"]["why"] == "taken by the queue: run big (priority 10) needs the machines"
    assert during["quotas"] == [{"owner": "ada", "name": "islands", "used": 2.0, "limit": 3.0}]
    assert refused.code == 2
    assert "the quota of ada can never cover 4 islands of 1 CPU" in refused.out + refused.err
    assert ended.code == 0, ended.out
    assert "queued: takes local-1 of crawl; they hand in their work first" in ended.out
    (row,) = after["runs"]
    assert (row["run"], row["held"], row["withheld"], row["why"]) == ("crawl", 2, [], "")
    assert stopped.code == 130, stopped.out
    (drain,) = drained
    assert drain["island"] == "local-1"
    assert "run big (priority 10) needs the machines" in json.dumps(drain)
    for summary in summaries:
        assert (summary["tokens_lost"], summary["tokens_outstanding"]) == (0, 0)
