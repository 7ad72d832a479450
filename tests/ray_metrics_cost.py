"""Measure the CPU time of a run's metrics on the pages of Ray's agents.

    python -m tests.ray_metrics_cost [--islands 64] [--for 40]

An actor sets the metrics of one status for some seconds as the fleet does, and for as long does
nothing, twice each. The agent's page is read every ten seconds, as by Prometheus. The script
prints the number of series, and the CPU seconds per second of the actor's process and of Ray's
agent, each way.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import urllib.request
from collections import defaultdict
from typing import Any

import psutil
import ray

from cluster.fleet.metrics import METRICS
from cluster.fleet.ray_metrics import RayMetrics
from tests.cluster.test_progress import a_status
from tests.live.cli import ROOT, until

SCRAPE_S = 10.0
"""Seconds between two readings of the agent's page, as in `dashboards/prometheus.yml`."""


class Setter:
    """The actor that sets the metrics."""

    def __init__(self, islands: int) -> None:
        self._status, self._metrics = a_status(islands=islands), RayMetrics()

    def series(self) -> int:
        """Return the number of series."""
        return sum(len([*metric.read(self._status)]) for metric in METRICS)

    def measure(self, for_s: float, sets: bool) -> float:
        """Return the CPU seconds of this process per second."""
        began_s, end_s = time.process_time(), time.monotonic() + for_s

        def is_over() -> bool:
            if sets:
                self._metrics.look(self._status)
            return time.monotonic() >= end_s

        until(is_over)
        assert self._metrics.trouble is None
        return (time.process_time() - began_s) / for_s


def agent_cpu_s() -> float:
    """Return the CPU seconds of all of Ray's agents below this process."""
    total_s, found = 0.0, False
    for child in psutil.Process().children(recursive=True):
        if "DashboardAgent" in "".join(child.cmdline()[:1]):
            total_s, found = total_s + sum(child.cpu_times()[:2]), True
    assert found, "no agent of Ray"
    return total_s


def measured(setter: Any, for_s: float, sets: bool) -> tuple[float, float]:
    """Return the CPU seconds per second of the actor and of the agents."""
    before_s, pending = agent_cpu_s(), setter.measure.remote(for_s, sets)
    (node,) = ray.nodes()
    page = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    while not ray.wait([pending], timeout=SCRAPE_S)[0]:
        with urllib.request.urlopen(page, timeout=10) as answer:
            answer.read()
    return ray.get(pending), (agent_cpu_s() - before_s) / for_s


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--islands", type=int, default=64)
    options.add_argument("--for", dest="for_s", type=float, default=40.0)
    given = options.parse_args()
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(
        num_cpus=1,
        runtime_env=environment,
        include_dashboard=False,
        logging_level=logging.ERROR,
    )
    setter: Any = ray.remote(Setter).remote(given.islands)
    found = defaultdict[str, list[float]](list)
    for sets in (False, True) * 2:
        way = "with" if sets else "without"
        fleet, agent = measured(setter, given.for_s, sets)
        found[f"fleet_{way}"].append(fleet)
        found[f"agent_{way}"].append(agent)
    print(json.dumps({"series": ray.get(setter.series.remote()), **found}))
    ray.shutdown()


if __name__ == "__main__":
    main()
