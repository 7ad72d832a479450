"""An island of two hosts on two nodes: one node dies, and the island continues on a third."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.cli import ROOT, finish, until
from tests.live.test_cluster import Raylets, up
from tests.live.test_hosts import CONFIG, others, takes_part

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(900)]


def parent(pid: int) -> int:
    """Return the id of the raylet that started this process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_node_dies_and_the_island_comes_back_on_another() -> None:
    with up() as (cluster, _):
        here = cluster.here
        config = here.folder / "hosts.toml"
        config.write_text(CONFIG.replace("hosts = 2", "hosts = 2\nspread = true"))
        process = started(cluster, "run", str(config), "--json", "--run-dir", str(here.run_dir))
        until(lambda: takes_part(here, 1) or process.poll() is not None)
        assert process.poll() is None, process.communicate()[1]
        (victim,) = others(here)
        first = next(p for p, command in here.left_running().items() if "IslandActor" in command)
        assert parent(victim) != parent(first), "on nodes of their own"
        before = here.merges
        os.kill(parent(victim), signal.SIGKILL)
        until(lambda: here.merges > before + 5 or process.poll() is not None)
        until(lambda: takes_part(here, 2) or process.poll() is not None)
        assert len(others(here)) == 1
        stopped = cluster.run("stop", str(here.run_dir))
        assert stopped.code == 0, stopped.err
        finished = finish(process)
        assert finished.code == 0, finished.err
        summary: dict[str, Any] = finished.json
        fates = ("merged", "discarded", "lost", "outstanding")
        assert summary["tokens_trained"] == sum(summary[f"tokens_{fate}"] for fate in fates)


def started(cluster: Raylets, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "archipelago", *arguments, "--address", cluster.address],
        cwd=ROOT,
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
