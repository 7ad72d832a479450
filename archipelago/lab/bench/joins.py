"""The benchmark of joins: many learners join a large model over a thin link, then its shard dies.

`python -m archipelago.lab.bench.joins PLAN`, where PLAN is JSON of a `JoinPlan`, prints figures. It
uses the cluster at `address`, whose far host has the learners, or an embedded cluster, where a
pacer stands for the link. Syncer, shard, object store, files and the transport to the learners are
those of a run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError

from archipelago.lab.bench import procfs, stub_actor
from archipelago.lab.bench.embedded_core import BenchStage, staged
from archipelago.lab.bench.hosts import FAR_RESOURCE, can_be, two_hosts
from archipelago.lab.bench.joiner import Pacer, start_joiner
from archipelago.lab.bench.memory import island_terms, shard_terms, store_terms, total
from cluster.actors.call_errors import answer
from cluster.actors.start import end_actor, start_shard
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.launch.ray_cluster import Stores
from cluster.names import SHARD
from cluster.storage.files import json_text
from coordinator.errors import RunFailed
from coordinator.fragments import Layout, Leaf, cut

FOREVER, NEVER = 10**9, 10**6
LOOK_S, POLL_S = 0.25, 0.02
WITHIN_S = 600.0
"""Seconds that a join, or a restart, may take before the benchmark fails."""
GROUP = "far"
"""The group name of the learners."""


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """The size of the model, the learners and the link."""

    side: int
    """Rows and columns of the square tensor of each fragment."""
    fragments: int
    """The number of fragments, P."""
    learners: int
    """The number of learners that join at once."""
    bits_s: float
    """The bandwidth of the link in bits per second."""
    address: str | None = None
    """The address of a Ray cluster; None for an embedded one."""

    @property
    def model_bytes(self) -> int:
        """Bytes of the model in f32."""
        return 4 * self.fragments * self.side**2


LARGE = JoinPlan(side=2896, fragments=32, learners=16, bits_s=200e6)
"""The full size: 1.07 GB in f32."""
QUICK = JoinPlan(side=724, fragments=16, learners=4, bits_s=200e6)
"""The quick size: 34 MB in f32."""


def config_of(plan: JoinPlan) -> Config:
    """Return a configuration in which no round is ever due, since only the joins are measured."""
    tables = {
        "run": {"steps": FOREVER},
        "task": {"preset": "byte-tiny"},  # never built: the learners are stubs
        "sync": {"every": NEVER, "fragments": plan.fragments},
        "islands": [{"group": GROUP, "count": plan.learners, "resources": {"CPU": 0.0}}],
    }
    return parse(tables, origin="bench large", overrides=())


def layout_of(plan: JoinPlan) -> Layout:
    """Return a layout with one square tensor in each fragment."""
    leaves = [Leaf(f"block-{p:02}", (plan.side, plan.side)) for p in range(plan.fragments)]
    return cut(leaves, plan.fragments)


def joins(plan: JoinPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the joins, on two hosts if this process may make them.

    Errors: `RunFailed` if a learner does not join, or a shard does not come back.
    """
    if not can_be():
        say("no network namespaces without root, ip and tc: the link is a pacer's")
        return _there(plan, say)
    stores = Stores.of(config_of(plan), layout_of(plan))
    room = 2**27
    with two_hosts(plan.bits_s, stores.shards + room, stores.island + room) as (hosts, address):
        task = asdict(plan) | {"address": address}
        process = hosts.start(
            hosts.near, "-m", "archipelago.lab.bench.joins", json_text(task), into=subprocess.PIPE
        )
        try:
            output, errors = process.communicate(timeout=2 * WITHIN_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RunFailed(f"joins over a link: {errors.strip()[-2000:]}")
    return json.loads(output.splitlines()[-1])


def _there(plan: JoinPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the joins in this process, on the cluster of the plan."""
    config, layout = config_of(plan), layout_of(plan)
    flats = [np.full(size, p + 1, np.float32) for p, size in enumerate(layout.sizes)]
    with staged(config, layout, flats, plan.address) as stage:
        del flats[:]
        with Peaks() as peaks:
            return _measured(plan, stage, peaks, say)


def _measured(
    plan: JoinPlan, stage: BenchStage, peaks: Peaks, say: Callable[[str], None]
) -> dict[str, Any]:
    """Have the learners join, kill the shard, and return the figures."""
    pacer: Any = None
    resources = {FAR_RESOURCE: 1.0}
    if plan.address is None:
        made: Any = ray.remote(Pacer).options(num_cpus=0, max_concurrency=64)
        pacer, resources = made.remote(plan.bits_s / 8), {}
    islands = stage.config.island_names
    joiners = [start_joiner(stage.config, each, stage.home, pacer, resources) for each in islands]
    pids = [answer(stub_actor.pid_of(each), WITHIN_S) for each in joiners]
    idle = {"shard": idle_shard_bytes(stage), "learner": max(map(procfs.own_bytes, pids))}
    peaks.of |= {"syncer": [stage.syncer_pid], "shard": stage.shard_pids, "learner": pids}
    say(f"{plan.learners} learners join, {plan.model_bytes / 1e6:.0f} MB")
    began_s = time.monotonic()
    requests = [each.join.remote(stage.layout.fingerprint) for each in joiners]
    joined_s = sorted(answer(each, WITHIN_S) - began_s for each in requests)
    bytes_s = plan.model_bytes * 8 / plan.bits_s
    say(f"in after {joined_s[0]:.1f} to {joined_s[-1]:.1f} s; the bytes alone take {bytes_s:.1f} s")
    wanted = float(sum((p + 1) * size for p, size in enumerate(stage.layout.sizes)))
    if [answer(each.read.remote(), WITHIN_S) for each in joiners] != [wanted] * len(joiners):
        raise RunFailed("what the learners have is not the model")
    mapped = sum(answer(each.mapped.remote(), WITHIN_S) for each in joiners)
    joined = peaks.seen()
    stores = _store_bytes()
    shard_gap_s = killed_shard(stage)
    say(f"the shard is back after {shard_gap_s:.1f} s")
    config, layout = stage.config, stage.layout
    near, far = (total(store_terms(config, layout, shards=s)) for s in (True, False))
    return {
        "model_bytes": plan.model_bytes,
        "link_bits_s": plan.bits_s,
        "link": "paced" if plan.address is None else "token buckets between two hosts",
        "join_bytes_s": bytes_s,
        "join_first_s": joined_s[0],
        "join_s": joined_s[-1],
        "join_of_bytes": joined_s[-1] / bytes_s,
        "learners_that_map": mapped,
        "shard_gap_s": shard_gap_s,
        "peak_bytes": joined,
        "formula_bytes": {
            "shard": idle["shard"] + total(shard_terms(config, layout, merging=False)),
            "learner": idle["learner"] + total(island_terms(config, layout, mapped=True)),
        },
        "store_bytes": stores,
        "store_formula_bytes": [near, far] if plan.address else [near],
    }


def killed_shard(stage: BenchStage) -> float:
    """Kill the shard, and return the seconds until its new process has the model.

    Errors: `RunFailed` if it does not come back.
    """
    (pid,) = stage.shard_pids
    shard: Any = ray.get_actor(SHARD, namespace=stage.home.namespace)
    os.kill(pid, signal.SIGKILL)
    began_s = time.monotonic()
    while time.monotonic() - began_s < WITHIN_S:
        try:
            probe: object = ray.get(shard.probe.remote(1), timeout=WITHIN_S)
            if probe is not None:
                return time.monotonic() - began_s
        except (RayError, GetTimeoutError):
            pass  # Ray is restarting it
        time.sleep(POLL_S)
    raise RunFailed(f"the shard that was killed is not back within {WITHIN_S:g} s")


def idle_shard_bytes(stage: BenchStage) -> int:
    """Return the memory of its own that a shard process has while it holds no fragments."""
    idle = start_shard(stage.config, "idle", stage.home, stage.run_dir)
    try:
        answer(idle.__ray_call__.remote(_warm), WITHIN_S)
        return procfs.own_bytes(answer(stub_actor.pid_of(idle)))
    finally:
        end_actor(idle)


def _warm(shard: Any) -> None:
    """Return when everything is compiled."""
    shard.process.arithmetic.submit(int).result()


def _store_bytes() -> dict[str, int]:
    """Return the bytes in the object store of each node, by address."""
    from ray._private.internal_api import node_stats

    return {
        node["NodeManagerAddress"]: node_stats(
            node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False
        ).store_stats.object_store_bytes_used
        for node in ray.nodes()
        if node["Alive"]
    }


@dataclass(slots=True)
class Peaks:
    """The peak of own memory of several processes, by kind, sampled on a thread."""

    of: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """The process ids of each kind; they may be added while the thread runs."""
    _most: dict[str, int] = field(default_factory=dict[str, int])
    _enough: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Peaks:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        assert self._thread is not None
        self._thread.join()

    def _look(self) -> None:
        while not self._enough.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Sample the memory of all processes once."""
        for kind, pids in dict(self.of).items():
            for pid in pids:
                try:
                    now = procfs.own_bytes(pid)
                except OSError:
                    continue  # the process has been killed
                self._most[kind] = max(self._most.get(kind, 0), now)

    def seen(self) -> dict[str, int]:
        """Return the peak bytes of each kind so far."""
        self.look()
        return dict(self._most)


def main() -> None:
    """Run the plan of the command line, and print the figures as JSON."""
    plan = JoinPlan(**json.loads(sys.argv[1]))
    figures = _there(plan, lambda words: print(words, file=sys.stderr, flush=True))
    print(json_text(figures))


if __name__ == "__main__":
    main()
