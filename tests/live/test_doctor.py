"""The doctor on a real cluster: no finding on a healthy one, a note on a node that drains."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.live.cli import place

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(390)]
CLUSTER = """
import json, sys
import ray
from ray.cluster_utils import Cluster
from cluster.fleet.draining_nodes import drain_node

@ray.remote(num_cpus=0)
class Held:
    pass

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
other = cluster.add_node(num_cpus=1)
cluster.connect(namespace="archipelago-forgotten")
print(json.dumps([cluster.address, other.node_ip_address]), flush=True)
sys.stdin.readline()
there = {"ray.io/node-id": other.node_id}  # an idle node would end at once
held = Held.options(name="island eu-0", num_cpus=1, label_selector=there).remote()
ray.get(held.__ray_ready__.remote())
drain_node(other.node_id, "preempted: a test", 300.0)
print(flush=True)
sys.stdin.readline()
ray.shutdown()
cluster.shutdown()
"""


def test_healthy_cluster_has_no_finding_and_a_draining_node_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with (
        place() as here,
        subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            env=here.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        address, other = json.loads(process.stdout.readline())
        healthy = here.run("doctor", "--address", address, "--json")
        listed = here.run("list", "--address", address, "--json")
        process.stdin.write("drain\n")
        process.stdin.flush()
        process.stdout.readline()
        draining = here.run("doctor", "--address", address, "--json")
        process.stdin.close()
        assert process.wait(60) == 0
    assert (healthy.code, healthy.json) == (0, {"ok": True, "findings": []}), healthy.err
    assert (listed.code, listed.json) == (0, {"runs": []}), listed.err
    assert draining.code == 0, draining.err
    found = {(each["where"], each["severity"]) for each in draining.json["findings"]}
    assert found == {(f"node {other}", "note"), ("run forgotten", "warning")}


SILENT = """
import json, os, signal, sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
healthy, silent = (
    cluster.add_node(num_cpus=1, labels={"region": name}) for name in ("eu", "us")
)
cluster.wait_for_nodes()
raylet = silent.all_processes["raylet"][0].process.pid
os.kill(raylet, signal.SIGSTOP)
print(json.dumps(cluster.address), flush=True)
sys.stdin.readline()
os.kill(raylet, signal.SIGKILL)  # it would start the processes that it was asked for
cluster.shutdown()
"""


def test_silent_node_is_named_and_the_links_of_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with (
        place() as here,
        subprocess.Popen(
            [sys.executable, "-c", SILENT],
            env=here.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())
        found = here.run("doctor", "--links", "--address", address, "--json", "--mb", "1")
        process.stdin.close()
        assert process.wait(60) == 0
    assert found.code == 1, found.err
    rows = {(each["from"][:2], each["to"][:2]): each for each in found.json["links"]}
    assert len(rows) == 4
    for ends, row in rows.items():
        if "us" in ends:
            assert "does not answer within 60 s" in row["error"]
        else:
            assert row["error"] is None
            assert row["gbit_s"] > 0
    problems = [each for each in found.json["findings"] if each["severity"] == "problem"]
    assert {each["where"] for each in problems} == {
        f"{row['from']} to {row['to']}" for row in rows.values() if row["error"]
    }
