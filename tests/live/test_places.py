"""Placement groups on Ray itself, with labels and TPU slices that are simulated resources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.cli import ROOT, place

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(200)]

STORY = """
import json, time
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from cluster.actors.hosts import host_group
from cluster.fleet import placement, ray_backend
from cluster.config.schema import IslandGroup
from cluster.names import Seat

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
for number, topology, region in ((0, "2x2", "eu"), (1, "2x2", "us"), (2, "4x4", "eu")):
    cluster.add_node(
        num_cpus=1,
        resources={"TPU": 4},
        labels={
            "ray.io/tpu-slice-name": f"slice-{number}", "ray.io/tpu-worker-id": "0",
            "ray.io/tpu-topology": topology, "ray.io/accelerator-type": "TPU-V6E",
            "region": region,
        },
    )
cluster.add_node(num_cpus=2, labels={"region": "eu"})
for number, worker in ((8, 1), (8, 0), (9, 0), (9, 1)):  # two slices of two hosts each
    cluster.add_node(
        num_cpus=1,
        resources={"TPU": 4} | ({"TPU-v4-16-head": 1} if worker == 0 else {}),
        labels={
            "ray.io/tpu-slice-name": f"slice-{number}", "ray.io/tpu-worker-id": str(worker),
            "ray.io/tpu-pod-type": "v4-16", "ray.io/tpu-topology": "2x2x2",
            "ray.io/accelerator-type": "TPU-V4", "region": "asia",
        },
        env_vars={"TPU_NAME": f"slice-{number}", "TPU_WORKER_ID": str(worker)},
    )
cluster.connect()

def reserve(group, number):
    seat = Seat(f"{group.group}-{number}")
    return ray_backend.reserve(group, seat, "places", detached=False)

def ready(place, within_s):
    end_s = time.monotonic() + within_s
    while not (answer := place.ready()) and time.monotonic() < end_s:
        time.sleep(0.1)
    return answer

@ray.remote(num_cpus=1)
def where():
    labels = {n["NodeID"]: n["Labels"] for n in ray.nodes()}
    return labels[ray.get_runtime_context().get_node_id()]

def labels_at(place):
    return ray.get(where.options(scheduling_strategy=place.strategy()).remote())

tpu = IslandGroup(group="tpu", resources={"CPU": 1.0}, accelerator="TPU-V6E", topology="2x2")
near = tpu.model_copy(update={"group": "near", "label_selector": {"region": "eu"}})
wide = IslandGroup(
    group="wide", resources={"CPU": 1.0}, accelerator="TPU-V4", topology="2x2x2", hosts=2
)

@ray.remote(num_cpus=1)
class First:
    # the first host of an island: where it and the other one are

    def both(self):
        group = ray.util.get_current_placement_group()
        mine, other = host_group.bundles_by_host(group)
        there = where.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, other))
        labels = {n["NodeID"]: n["Labels"] for n in ray.nodes()}
        found = [labels[ray.get_runtime_context().get_node_id()], ray.get(there.remote())]
        return [[each["ray.io/tpu-slice-name"], each["ray.io/tpu-worker-id"]] for each in found]

def hosts_of(place):
    first = First.options(scheduling_strategy=place.strategy()).remote()
    return ray.get(first.both.remote())

eu = IslandGroup(group="eu", resources={"CPU": 2.0}, label_selector={"region": "eu"})
told = {"room": [placement.room(g, ray_backend.cluster_nodes()) for g in (tpu, near, eu, wide)]}
slices = [reserve(near, 0), reserve(tpu, 1)]
told["slices"] = [ready(place, 20) for place in slices]
told["names"] = [labels_at(place)["ray.io/tpu-slice-name"] for place in slices]
third, fourth = reserve(tpu, 2), reserve(near, 3)
told["third"] = [ready(third, 1), ready(fourth, 1)]
ray_backend.reserved(Seat("tpu-1"), "places").give_back()  # as a fleet does that has come back
told["third_then"] = [ready(third, 30), ready(fourth, 1)]
slices[0].give_back()
told["fourth_then"] = ready(fourth, 30)
first, second = reserve(eu, 0), reserve(eu, 1)
told["eu"] = [ready(first, 20), labels_at(first)["region"], ready(second, 2)]
first.give_back()
told["second_then"] = ready(second, 20)
told["still"] = all(second.ready() for _ in range(50))
told["found"] = ray_backend.reserved(Seat("eu-1"), "places") is not None
one, two = reserve(wide, 0), reserve(wide, 1)
told["wide"] = [ready(one, 60), ready(two, 60), ready(three := reserve(wide, 2), 3)]
told["wide_hosts"] = sorted(hosts_of(each) for each in (one, two))
one.give_back()
told["wide_then"] = ready(three, 60)
taken_over = ray_backend.reserved(Seat("wide-1"), "places")
told["taken_over"] = [taken_over.ready(), hosts_of(taken_over)[0][1]]
taken_over.give_back()
told["taken_over_then"] = ready(reserve(wide, 5), 60)
reserve(wide, 4).give_back()  # no process waits for that one any more
told["not_found"] = ray_backend.reserved(Seat("eu-7"), "places") is None
print(json.dumps(told))
ray.shutdown()
cluster.shutdown()
"""


def test_islands_wait_for_the_slice_or_the_label_that_they_need() -> None:
    with place() as here:
        script = here.folder / "story.py"
        script.write_text(STORY)
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**here.environment, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)},
            cwd=Path(os.sep),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        told = json.loads(done.stdout.splitlines()[-1])
    assert told == {
        "room": [2, 1, 1, 2],
        "slices": [True, True],
        "names": ["slice-0", "slice-1"],
        "third": [False, False],
        "third_then": [True, False],
        "fourth_then": True,
        "eu": [True, "eu", False],
        "second_then": True,
        "still": True,
        "found": True,
        "wide": [True, True, False],
        "wide_hosts": [[["slice-8", "0"], ["slice-8", "1"]], [["slice-9", "0"], ["slice-9", "1"]]],
        "wide_then": True,
        "taken_over": [True, "0"],
        "taken_over_then": True,
        "not_found": True,
    }
