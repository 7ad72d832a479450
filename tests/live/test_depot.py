"""The node of the fleet, syncer or shard dies, and the run continues on a node new to it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from cluster.storage.folder import Folder
from cluster.storage.layout import load_layout
from cluster.storage.playback import read_tape
from cluster.storage.runs import TARGET, TOKEN
from cluster.storage.segments import generations
from coordinator.protocol import Event, ShardBack, ShardLost
from tests.live.cli import TINY, until
from tests.live.test_cluster import RUN, SLOWLY, WITHIN_S, Raylets, held, processes, up

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(400)]

HOLDERS = ("Fleet", "Syncer", "Shard")
ISLANDS = ("local-0", "local-1")


def test_a_submitted_run_survives_the_node_of_its_fleet(tmp_path: Path) -> None:
    """SIGKILL ends the fleet's raylet and all that is on it.

    The run recovers from its depot, not from the run directory, which is empty then.
    """
    with up(RAY_JOB_ALLOW_DRIVER_ON_WORKER_NODES="1") as (cluster, _):
        submitted = cluster.run(
            "submit", str(TINY), "--address", cluster.jobs, "--no-wait", *SLOWLY,
            "--set", f"run.name={RUN}", "--set", f"durability.dir={tmp_path}",
        )  # fmt: skip
        assert submitted.code == 0, submitted.err
        cluster.until_contributing(*ISLANDS)
        (node,) = {parent(pid) for pid in processes(cluster, *HOLDERS)}
        before = cluster.last
        lives = {each["island"]: each["life"] for each in before["islands"]}
        gone = cluster.run_dir.rename(cluster.run_dir.with_name("gone"))
        os.kill(node, signal.SIGKILL)
        killed_s = time.monotonic()
        until(lambda: cluster.last.get("merges", 0) > before["merges"] + 10, WITHIN_S)
        print(f"merging again {time.monotonic() - killed_s:.1f} s after its node was killed")
        assert node not in {parent(pid) for pid in processes(cluster, *HOLDERS)}
        assert generations(Folder(tmp_path / RUN)) == [0, 1]
        cluster.until_contributing(*ISLANDS)
        assert all(each["life"] > lives[each["island"]] for each in cluster.last["islands"])
        assert cluster.last["figures"]["merges_lost"] == 0
        ended(cluster, gone, tmp_path / RUN)
        until(lambda: held(cluster) == ([], 0), WITHIN_S)


def test_a_shard_that_dies_with_its_node_comes_back_elsewhere(tmp_path: Path) -> None:
    """The shard is one of three on separate nodes; syncer and learners live on meanwhile."""
    depot = Folder(tmp_path / RUN)
    with up(RAY_JOB_ALLOW_DRIVER_ON_WORKER_NODES="1") as (cluster, _):
        submitted = cluster.run(
            "submit", str(TINY), "--address", cluster.jobs, "--no-wait", *SLOWLY,
            "--set", f"run.name={RUN}", "--set", f"durability.dir={tmp_path}",
            "--set", "sync.shards=3", "--set", 'sync.shard_labels={region="in(eu,us)"}',
        )  # fmt: skip
        assert submitted.code == 0, submitted.err
        cluster.until_contributing(*ISLANDS)
        nodes = {parent(pid) for pid in processes(cluster, "Shard")}
        assert len(nodes) == 3, "one for each"
        others = {parent(pid) for pid in processes(cluster, "Fleet", "Syncer", "Evaluator")}
        islands = {parent(pid) for pid in processes(cluster, "Island")}
        node = min(nodes - others, key=lambda each: each in islands)
        os.kill(node, signal.SIGKILL)
        killed_s = time.monotonic()
        until(lambda: any(isinstance(each, ShardBack) for each in events(depot)), WITHIN_S)
        print(f"its shard is back {time.monotonic() - killed_s:.1f} s after the node was killed")
        before = cluster.last["merges"]
        until(lambda: cluster.last.get("merges", 0) > before + 10, WITHIN_S)
        cluster.until_contributing(*ISLANDS)
        assert generations(depot) == [0]
        (lost,) = [each for each in events(depot) if isinstance(each, ShardLost)]
        assert 2 <= len(lost.fragments) <= 3, "of eight"
        until(lambda: len(processes(cluster, "Shard")) == 3, WITHIN_S)  # the lost one ends as well
        assert cluster.ask("stop").code == 0
        until((tmp_path / RUN / "summary.json").exists, WITHIN_S)
        until(lambda: held(cluster) == ([], 0), WITHIN_S)


def events(depot: Folder) -> list[Event]:
    return [row.event for row in read_tape(depot, load_layout(depot).fingerprint).events]


def ended(cluster: Raylets, gone: Path, depot: Path) -> None:
    """Stop the run, and check its summary and model in the depot and in the run directory."""
    assert cluster.ask("stop").code == 0
    until((depot / "summary.json").exists, WITHIN_S)
    summary = json.loads((cluster.run_dir / "summary.json").read_text())
    fates = ("merged", "discarded", "lost", "outstanding")
    assert summary["tokens_trained"] == sum(summary[f"tokens_{fate}"] for fate in fates)
    for name in ("config.toml", "summary.json", "model.safetensors"):
        assert (depot / name).read_bytes() == (cluster.run_dir / name).read_bytes()
    kept = {path.name for path in depot.iterdir()}
    assert {"layout.json", "state.json", "notes.jsonl", "fleet.json", "fragments"} <= kept
    assert kept.isdisjoint({"metrics.jsonl", "events.jsonl", "live.json", "ray.log"})
    assert {path.name for path in gone.iterdir()} == {
        "config.toml", "metrics.jsonl", "events.jsonl", "live.json", TARGET, TOKEN,
    }  # fmt: skip


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
