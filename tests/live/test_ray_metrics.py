"""A real Prometheus that scrapes Ray alone shows a run with `monitor.ray_metrics`."""

from __future__ import annotations

import json

import pytest

from cluster.fleet.metrics import METRICS
from tests.archipelago.test_boards import expressions
from tests.live.cli import TINY, Place, finish, place, until
from tests.live.prometheus import prometheus_of

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(400)]

PAGE = """
import json, sys
from pathlib import Path
from cluster.storage.runs import live_of
live = live_of(Path(sys.argv[1]))
live.prepare()
import ray
ray.init(address=live.address, logging_level="ERROR", log_to_driver=False)
(node,) = ray.nodes()
print(json.dumps(f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"))
"""
"""A program that prints the address of the page of Ray's metrics on the node of a run."""


def ray_page(here: Place) -> str:
    finished = finish(here.start_python("-c", PAGE, str(here.run_dir)))
    assert finished.code == 0, finished.err
    return json.loads(finished.out.splitlines()[-1])


def test_prometheus_of_ray_has_every_metric_through_a_kill() -> None:
    with place() as here:
        targets = here.folder / ".archipelago" / "targets"
        process = here.start(
            "run", str(TINY), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000", "--set", "islands.0.step_s=0.2",
            "--set", f"monitor.targets={targets}", "--set", "monitor.ray_metrics=true",
            "--set", "faults.plan=[{at_step = 60, kind = 'kill', island = 'local-1'}]",
        )  # fmt: skip
        until(lambda: here.last_status.get("t", 0) > 10)
        assert not targets.exists() or not [*targets.iterdir()]
        with prometheus_of(here.folder, run="run", ray_page=ray_page(here)) as prometheus:
            merged = 'archipelago_tokens_merged_total{run="run"}'
            until(lambda: prometheus.number(merged))
            assert prometheus.ask('{__name__=~"ray_archipelago_.*"}') == []
            own = {each.full_name for each in METRICS}
            found = {each["metric"]["__name__"] for each in prometheus.ask('{run="run"}')}
            assert {each for each in found if each.startswith("archipelago_")} <= own
            assert len(found & own) > 0.8 * len(own), own - found
            contributions = "archipelago_island_contributions_total"
            series = prometheus.ask(f'{contributions}{{run="run",island="local-1"}}')
            assert len(series) == 1
            assert series[0]["metric"].get("WorkerId") is None

            lives = 'archipelago_island_restarts_total{run="run",island="local-1"}'
            until(lambda: (prometheus.number(lives) or 0) >= 1)
            boards = [each for each in expressions() if not each.startswith("label_values")]
            assert [each for each in boards if prometheus.ask(each) is None] == []
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(process)
        assert finished.code == 0, finished.err
