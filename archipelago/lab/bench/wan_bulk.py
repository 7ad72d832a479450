"""Objects at the full rate of every link of a network, while the nodes must stay alive.

A node whose heartbeats wait behind bulk data may be given up by Ray (ray#13076). Each region
fetches objects of the next one, several at once, so every link is busy in both directions.
`python -m archipelago.lab.bench.wan_bulk JSON` is the driver in the first region.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from archipelago.lab.bench.wan_run import driver
from archipelago.lab.wan import ceiling, kernel, nodes, rig
from archipelago.lab.wan.network import Network
from cluster.actors.call_errors import answer, message_of
from cluster.launch.connect import connect
from cluster.launch.links import LinkProbe
from cluster.storage.files import json_text
from coordinator.errors import RunFailed

NAME, PREFIX = "bblk", "10.93"
STORE_MB = 1500
START_S = 60.0
"""Timeout of the start of an actor, and of its answer to a call."""
LOOK_S = 1.0
"""Seconds between two looks at the nodes of the cluster."""


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """The links, the objects and the duration."""

    for_s: float
    address: str = ""
    """The address of the Ray cluster; the measurement sets it."""
    regions: tuple[str, ...] = ("r0", "r1", "r2", "r3")
    gbit: float = 0.1
    """Two busy cores forward and copy no more than this at the full rate of four links."""
    rtt_ms: float = 80.0
    object_bytes: int = 100 * 2**20
    at_once: int = 2
    """Objects that each region fetches at the same time."""


def bulk(plan: BulkPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Send objects over all links, and return the figures of the nodes and of the links.

    Errors: `UserMistake` without root or network tools; `RunFailed`.
    """
    network = Network.planned(NAME, PREFIX, plan.regions, plan.gbit, plan.rtt_ms)
    size = nodes.NodeSize(cpus=2.0, store_mb=STORE_MB)
    with rig.running(network, say, size=size):
        tcp_gbit = ceiling.measure(network)
        before = kernel.counters(network)
        fields = asdict(plan) | {"address": f"{network.address(0)}:{nodes.PORT}"}
        module = "archipelago.lab.bench.wan_bulk"
        figures = driver(network, module, json_text(fields), within_s=plan.for_s)
        after = kernel.counters(network)
    sent = [after[name]["sent_bytes"] - before[name]["sent_bytes"] for name in plan.regions]
    share = min(sent) * 8e-9 / (tcp_gbit * figures["seconds"])
    say(
        f"{figures['objects']} objects in {figures['seconds']:.0f} s, the links at "
        f"{share:.0%} of plain TCP; {figures['lost_nodes']} nodes lost"
    )
    return {"method": "bulk", **figures, "link_fraction": share}


@dataclass(slots=True)
class Bulk:
    """The transfers under way, and what was counted."""

    plan: BulkPlan
    actors: Sequence[Any]
    objects: int = 0
    failed: list[str] = field(default_factory=list)
    calls_s: list[float] = field(default_factory=list)
    """The seconds of each small call to an actor of another region."""
    lost: set[str] = field(default_factory=set)
    """The nodes that Ray has given up."""
    _fetches: dict[ray.ObjectRef, int] = field(default_factory=dict)
    """Each fetch under way, with the number of the region that it is in."""

    def measured(self) -> dict[str, Any]:
        """Send objects for the seconds of the plan, or until one fails; return the figures."""
        began_s = looked_s = time.monotonic()
        for number in range(len(self.actors)):
            for _ in range(self.plan.at_once):
                self._begin(number)
        while time.monotonic() < began_s + self.plan.for_s and not self.failed:
            done, _ = ray.wait([*self._fetches], timeout=LOOK_S)
            for fetch in done:
                self._end(fetch)
            if time.monotonic() > looked_s + LOOK_S:
                self._look()
                looked_s = time.monotonic()
        seconds = time.monotonic() - began_s
        self._look()
        return {
            "seconds": seconds,
            "objects": self.objects,
            "failed_objects": len(self.failed),
            "first_failure": next(iter(self.failed), ""),
            "lost_nodes": len(self.lost),
            "call_median_s": statistics.median(self.calls_s),
            "call_longest_s": max(self.calls_s),
        }

    def _begin(self, number: int) -> None:
        """Let a region fetch an object of the next one."""
        source = self.actors[(number + 1) % len(self.actors)]
        boxed = source.put.remote(self.plan.object_bytes)
        self._fetches[self.actors[number].fetch_s.remote(boxed)] = number

    def _end(self, fetch: ray.ObjectRef) -> None:
        """Count a fetch that has ended, and begin the next one of its region."""
        number = self._fetches.pop(fetch)
        try:
            ray.get(fetch)
            self.objects += 1
        except RayError as error:
            self.failed.append(message_of(error))
        self._begin(number)

    def _look(self) -> None:
        """Note the nodes that are dead, and the time of a small call to each other region."""
        self.lost |= {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
        for actor in self.actors[1:]:
            began_s = time.monotonic()
            try:
                ray.get(actor.port.remote(), timeout=START_S)
            except (GetTimeoutError, RayError) as error:
                self.failed.append(message_of(error))
            self.calls_s.append(time.monotonic() - began_s)


def measure(plan: BulkPlan) -> dict[str, Any]:
    """Start an actor in each region and send objects; return the figures.

    Errors: `RunFailed` if an actor does not start.
    """
    connect(plan.address, "archipelago-bulk")
    try:
        kind: Any = ray.remote(LinkProbe)
        options = {"num_cpus": 0, "max_concurrency": 8}
        actors = [
            kind.options(label_selector={nodes.LABEL: name}, **options).remote()
            for name in plan.regions
        ]
        try:
            for actor in actors:
                answer(actor.port.remote(), START_S)
        except RayError as error:
            raise RunFailed(f"an actor of the benchmark does not start: {error}") from error
        return Bulk(plan, actors).measured()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    fields = json.loads(sys.argv[1])
    plan = BulkPlan(**fields | {"regions": tuple(fields["regions"])})
    print(json_text(measure(plan)), flush=True)
