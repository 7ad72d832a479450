"""A real Prometheus that scrapes Ray alone shows a run with `monitor.ray_metrics`."""

from __future__ import annotations

import json
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.storage.runs import TARGET
from tests.archipelago.test_boards import steady
from tests.live.cli import TINY, Place, finish, place, until
from tests.live.prometheus import Prometheus, prometheus_of

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(400)]

ANSWERED = ("archipelago", "archipelago-time", "archipelago-failures")
"""The boards that a short run on one machine fills without a target of its own."""
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


def asked(prometheus: Prometheus, expression: str) -> set[str]:
    """Return the names of the metrics that answer."""
    return {each["metric"]["__name__"] for each in prometheus.ask(expression)}


def own(here: Place) -> set[str]:
    """Return the names of the metrics with samples on the page of the run's own port."""
    ((target,),) = [each["targets"] for each in json.loads((here.run_dir / TARGET).read_text())]
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {sample.name for family in families for sample in family.samples}


def test_prometheus_of_ray_has_every_metric_through_a_kill() -> None:
    with place() as here:
        targets = here.folder / ".archipelago" / "targets"
        curve = here.folder / "expected.csv"
        curve.write_text("tokens,loss,low,high\n1,0.5,0.4,0.6\n1000000000000,0.2,0.1,0.3\n")
        process = here.start(
            "run", str(TINY), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000", "--set", "islands.0.step_s=0.2",
            "--set", f"monitor.targets={targets}", "--set", "monitor.ray_metrics=true",
            "--set", f"monitor.expected={curve}",
            "--set", "faults.plan=[{at_step = 60, kind = 'kill', island = 'local-1'}]",
        )  # fmt: skip
        until(lambda: here.last_status.get("t", 0) > 10)
        assert not targets.exists() or not [*targets.iterdir()]
        with prometheus_of(here.folder, run="run", ray_page=ray_page(here)) as prometheus:
            until(lambda: asked(prometheus, '{run="run",__name__=~"archipelago_.*"}') == own(here))
            assert prometheus.ask('{__name__=~"ray_archipelago_.*"}') == []
            series = 'archipelago_island_restarts_total{run="run",island="local-1"}'
            until(lambda: (prometheus.number(series) or 0) >= 1)
            assert ["WorkerId" in each["metric"] for each in prometheus.ask(series)] == [False]

            def missing() -> list[str]:
                recent = "last_over_time(({})[10m:1s])"
                return [e for e in steady(*ANSWERED) if not prometheus.ask(recent.format(e))]

            until(lambda: not missing())
            assert here.run("drain", str(here.run_dir), "local-1").code == 0
            until(lambda: not prometheus.ask(series))
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(process)
        assert finished.code == 0, finished.err
