"""A group of islands on real Ray with its autoscaler: from 1 to 3 to 0 nodes, and back.

The nodes are raylets that Ray's own provider of local nodes starts for the autoscaler.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.live.cli import place, until
from tests.live.prometheus import free_port
from tests.live.test_cluster import ROUNDING, TOKEN, Raylets, held

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(580)]
STORE_BYTES = 100 * 2**20
WITHIN_S = 120.0
COMMANDS = (
    "cluster_synced_files", "initialization_commands", "setup_commands", "head_setup_commands",
    "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands",
)  # fmt: skip
"""Lists that the autoscaler requires, of which local nodes need none."""
PROVIDER = "tests.live.local_nodes.LocalNodes"
HEAD_ID, HEAD_TYPE = "f" * 51 + "00000", "ray.head.default"
"""The id and the type of the head in this provider."""
IDLE_MIN = 0.1
"""Minutes after which the autoscaler removes an idle node."""
CONFIG = """
[run]
name = "story"
steps = 1000000
[task]
preset = "byte-tiny"
[data]
window = 32
[sync]
every = 8
[[islands]]
group = "home"
batch_size = 4
resources = {CPU = 0.5}
step_s = 0.1
[[islands]]
group = "far"
batch_size = 4
resources = {CPU = 0.5, slice = 1}
opportunistic = true
step_s = 0.1
"""


def nodes_of(port: int) -> dict[str, Any]:
    """Return the autoscaler's configuration: nodes of one slice each, up to three of them."""
    return {
        "cluster_name": "autoscaling",
        "max_workers": 3,
        "idle_timeout_minutes": IDLE_MIN,
        "provider": {
            "type": "external",
            "module": PROVIDER,
            "head_node_id": HEAD_ID,
            "gcs_address": f"127.0.0.1:{port}",
            "launch_multiple": True,
        },
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
            "far": {
                "resources": {"CPU": 1, "slice": 1, "object_store_memory": STORE_BYTES},
                "node_config": {},
                "min_workers": 0,
                "max_workers": 3,
            },
        },
        "head_node_type": HEAD_TYPE,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        **{key: [] for key in COMMANDS},
    }


@contextmanager
def autoscaled() -> Generator[Raylets]:
    """Yield a cluster of a head that has an autoscaler."""
    with place() as here:
        port, jobs = free_port(), free_port()
        config = here.folder / "nodes.yaml"
        config.write_text(json.dumps(nodes_of(port)))
        cluster = Raylets(here, f"127.0.0.1:{port}", f"http://127.0.0.1:{jobs}", {})
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # its `python` is this one
        more = {
            "PATH": path, "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        }  # fmt: skip
        command = [
            str(Path(sys.executable).with_name("ray")), "start", "--head", "--block",
            "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2",
            f"--object-store-memory={STORE_BYTES}", f"--dashboard-port={jobs}",
            f"--dashboard-agent-listen-port={free_port()}", f"--autoscaling-config={config}",
        ]  # fmt: skip
        output = (here.folder / "head.log").open("w")
        head = subprocess.Popen(
            command, env=cluster.environment | more, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            until(lambda: answers(cluster.jobs) or head.poll() is not None)
            assert head.poll() is None, (here.folder / "head.log").read_text()
            yield cluster
            assert head.poll() is None, (here.folder / "head.log").read_text()
        finally:
            output.close()
            head.send_signal(signal.SIGTERM)
            head.wait(60)
            for number in here.left_running():  # the provider's nodes do not end with their head
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


def answers(url: str) -> bool:
    """Return whether the job server lists its jobs."""
    asked = urllib.request.Request(f"{url}/api/jobs/", headers={"Authorization": f"Bearer {TOKEN}"})
    with suppress(OSError):
        urllib.request.urlopen(asked, timeout=5).close()
        return True
    return False


def raylets(cluster: Raylets) -> int:
    """Return the number of nodes that the autoscaler has started."""
    lines = cluster.here.left_running().values()
    return sum("raylet/raylet " in line and "--head" not in line for line in lines)


def test_group_grows_shrinks_to_nothing_and_returns(tmp_path: Path) -> None:
    (config := tmp_path / "far.toml").write_text(CONFIG)
    with autoscaled() as cluster:
        submitted = cluster.run("submit", str(config), "--address", cluster.jobs, "--no-wait")
        assert submitted.code == 0, submitted.err
        waits = until(lambda: why_far_waits(cluster), WITHIN_S)
        assert waits.startswith("waits for 0.5 CPU + 1 slice since 20")
        cluster.until_contributing("far-0", "home-0")
        assert raylets(cluster) == 1

        steps = cluster.last["t"]
        assert cluster.ask("scale", "far=3").code == 0
        cluster.until_contributing("far-0", "far-1", "far-2", "home-0")
        assert raylets(cluster) == 3
        assert cluster.last["t"] > steps, "the others went on"

        lost = cluster.last["figures"]["tokens_lost"]
        assert cluster.ask("scale", "far=0").code == 0
        cluster.until_contributing("home-0")
        until(lambda: raylets(cluster) == 0, WITHIN_S)
        assert abs(cluster.last["figures"]["tokens_lost"] - lost) <= ROUNDING

        assert cluster.ask("scale", "far=1").code == 0
        cluster.until_contributing("far-0", "home-0")
        assert raylets(cluster) == 1
        assert cluster.ask("stop").code == 0
        until((cluster.run_dir / "summary.json").exists, WITHIN_S)
        until(lambda: held(cluster) == ([], 0))
        summary = json.loads((cluster.run_dir / "summary.json").read_text())
    assert summary["tokens_outstanding"] == 0
    assert summary["tokens_lost"] <= ROUNDING


def why_far_waits(cluster: Raylets) -> str | None:
    rows = cluster.last.get("islands", ())
    return next(
        (each["why"] for each in rows if (each["island"], each["state"]) == ("far-0", "waiting")),
        None,
    )
