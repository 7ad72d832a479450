"""Preemptions on real Ray: an island that is about to go hands in, leaves and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cluster.fleet.inbox import ON_PURPOSE
from tests.live.cli import TINY, Place, finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(580)]
ROUNDING = 1
"""The tolerance in tokens: a status has means over fragments, rounded so that they add up."""
ISLANDS = 3
PLAN = """[[faults]]
after_s = 0.0
kind = "preempt"
island = "local-0"
for_s = 20.0
"""
DRAIN = """
import json, time
import ray
from ray.cluster_utils import Cluster
from cluster.config.schema import IslandGroup
from cluster.fleet import ray_backend
from cluster.fleet.draining_nodes import DrainingNodes, drain_node
from cluster.names import Seat

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
for number in range(2):
    cluster.add_node(num_cpus=1)
cluster.connect()
group = IslandGroup(group="eu", resources={"CPU": 1.0})

def ready(number, within_s):
    place = ray_backend.reserve(group, Seat(f"eu-{number}"), "drains", detached=False)
    end_s = time.monotonic() + within_s
    while not place.ready() and time.monotonic() < end_s:
        time.sleep(0.1)
    return place

watch, first = DrainingNodes(), ready(0, 60)
before = watch.now()
(node,) = first.nodes()
drain_node(node, "preempted: a test", 45.0)
end_s = time.monotonic() + 30
while not watch.now() and time.monotonic() < end_s:
    time.sleep(0.1)
draining = watch.now()
second, third = ready(1, 60), ready(2, 5)
print(json.dumps([
    before, [*draining] == [node], draining[node], second.nodes() != [node], third.ready(),
    third.nodes(),
]))
ray.shutdown()
cluster.shutdown()
"""


class Metadata(ThreadingHTTPServer):
    """The metadata server of a cloud on loopback; it preempts the next host that asks, once."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.preempt = threading.Semaphore(0)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Metadata)
        known = self.headers["Metadata-Flavor"] == "Google"
        taken = known and self.server.preempt.acquire(blocking=False)
        self.send_response(200 if known else 403)
        self.end_headers()
        self.wfile.write(b"TRUE" if taken else b"FALSE")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def metadata_server() -> Generator[Metadata]:
    with Metadata() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def test_ray_names_a_draining_node_and_places_nothing_there() -> None:
    with place() as here:
        finished = finish(here.start_python("-c", DRAIN))
    assert finished.code == 0, finished.err
    before, is_that_node, left_s, elsewhere, more, nodes_of_more = json.loads(
        finished.out.splitlines()[-1]
    )
    assert (before, is_that_node, elsewhere) == ({}, True, True)
    assert 0.0 < left_s <= 45.0
    assert (more, nodes_of_more) == (False, []), "there is no room but on the draining node"


def start(here: Place, server: Metadata) -> subprocess.Popen[str]:
    settings = {
        "run.steps": "1000000",
        "islands.0.count": str(ISLANDS),
        "islands.0.step_s": "0.1",
        "sync.quorum": "1",
        "faults.preemption.cloud": '"gce"',
        "faults.preemption.address": f'"http://127.0.0.1:{server.server_port}"',
        "faults.preemption.every_s": "1.0",
    }
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return here.start("run", str(TINY), "--json", "--run-dir", str(here.run_dir), *sets)


def events(here: Place, kind: str) -> list[dict[str, Any]]:
    lines = (here.run_dir / "events.jsonl").read_text().splitlines()
    return [event for line in lines if (event := json.loads(line))["kind"] == kind]


def all_contribute(here: Place, lives: int) -> bool:
    """Return whether all islands are live, and have had so many lives together."""
    told = here.last_status.get("islands", ())
    live = [each for each in told if each["state"] == "live" and each["contributions"] > 0]
    return len(live) == ISLANDS and sum(each["life"] for each in live) >= lives


def test_preempted_islands_hand_in_leave_and_come_back() -> None:
    """One island is sent SIGTERM, the cloud of another takes its host away, then `chaos` does."""
    with metadata_server() as server, place() as here:
        process = start(here, server)
        until(lambda: all_contribute(here, ISLANDS) or process.poll() is not None)
        assert process.poll() is None, finish(process).err
        healthy = here.run("doctor", str(here.run_dir), "--json")

        islands = [pid for pid, line in here.left_running().items() if "IslandActor" in line]
        os.kill(islands[0], signal.SIGTERM)
        until(lambda: all_contribute(here, ISLANDS + 1))
        merges = here.merges
        server.preempt.release()
        until(lambda: len(events(here, "drain")) == 2)
        until(lambda: all_contribute(here, ISLANDS + 2))
        plan = here.folder / "plan.toml"
        plan.write_text(PLAN)
        struck = here.run("chaos", str(here.run_dir), "--plan", str(plan), "--json")
        until(lambda: len(events(here, "drain")) == 3)
        until(lambda: all_contribute(here, ISLANDS + 3))
        until(lambda: here.merges > merges + 3)
        figures = here.last_status["figures"]
        noted = here.run("doctor", str(here.run_dir), "--json")

        process.send_signal(signal.SIGINT)
        finished = finish(process)
        drained, left, lost = (events(here, kind) for kind in ("drain", "leave", "loss"))
    assert finished.code == 130, finished.err
    (fault,) = struck.json["faults"]
    assert (struck.code, fault["refused"]) == (0, None)
    reasons = ["preempted: SIGTERM of its process", "preempted: notice of gce", ON_PURPOSE]
    for reason, event in zip(reasons, drained, strict=True):
        assert event["why"].startswith(reason)
    gone = {each["island"] for each in left if each["why"].startswith("preempted: ")}
    assert gone == {each["island"] for each in drained}
    assert lost == []
    assert figures["tokens_lost"] <= ROUNDING
    assert (healthy.code, healthy.json["ok"]) == (0, True), healthy.out
    assert (noted.code, noted.json["ok"]) == (0, True), noted.out
    notes = [each for each in noted.json["findings"] if each["severity"] == "note"]
    assert {each["where"] for each in notes} == gone, "an island may have been preempted twice"
    assert finished.json["failures"] == {}
