"""The Ray head dies under a submitted run and returns, with Ray's own fault tolerance."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.live.cli import TINY, until
from tests.live.test_cluster import RUN, SLOWLY, WITHIN_S, held, processes, up

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(400)]

AWAY_S = 15.0
ACTORS = ("Fleet", "Syncer", "Shard", "Evaluator", "Island")
ISLANDS = ("local-0", "local-1")


def test_a_submitted_run_survives_a_head_that_dies_and_comes_back(tmp_path: Path) -> None:
    """The run merges while the head is down; when it is up, the run heals itself and can end."""
    stored = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(tmp_path / "gcs")}
    with up(**stored) as (cluster, holder):
        submitted = cluster.run(
            "submit", str(TINY), "--address", cluster.jobs, "--no-wait", *SLOWLY,
            "--set", f"run.name={RUN}",
        )  # fmt: skip
        assert submitted.code == 0, submitted.err
        cluster.until_contributing(*ISLANDS)
        everybody = {*processes(cluster, *ACTORS)}
        merges = cluster.last["merges"]
        told(holder, "down")
        began_s = time.monotonic()
        until(lambda: cluster.last["merges"] > merges + 5)
        until(lambda: time.monotonic() - began_s > AWAY_S)
        told(holder, "up")
        assert everybody == {*processes(cluster, *ACTORS)}, "nobody died of it"
        merges = cluster.last["merges"]
        until(lambda: cluster.last["merges"] > merges + 10, WITHIN_S)
        cluster.until_contributing(*ISLANDS)
        life = sum(each["life"] for each in cluster.last["islands"])
        os.kill(processes(cluster, "Island")[0], signal.SIGKILL)
        until(lambda: sum(each["life"] for each in cluster.last["islands"]) > life, WITHIN_S)
        assert cluster.ask("scale", "local=3").code == 0
        cluster.until_contributing(*ISLANDS, "local-2")
        assert cluster.ask("stop").code == 0
        until((cluster.run_dir / "summary.json").exists, WITHIN_S)
        summary = json.loads((cluster.run_dir / "summary.json").read_text())
        fates = ("merged", "discarded", "lost", "outstanding")
        assert summary["tokens_trained"] == sum(summary[f"tokens_{fate}"] for fate in fates)
        until(lambda: held(cluster) == ([], 0), WITHIN_S)


def told(holder: subprocess.Popen[str], word: str) -> None:
    """Send a word to the process that holds the cluster, and wait until it is done."""
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write(f"{word}\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == f"{word}\n"
