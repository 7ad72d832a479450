"""One table of metrics: what is exported, and that boards and alerts use it, all of it."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any, get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.config.schema import MonitorConfig
from cluster.fleet.exporter import TARGET, Exporter
from cluster.fleet.metrics import METRICS, PREFIX
from cluster.status import Figures, IslandState
from coordinator.errors import UserMistake
from tests.cluster.test_progress import a_status

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
NAMED = re.compile(rf"{PREFIX}\w+")


def a_full_status() -> Any:
    status = a_status(islands=2)
    status["refusals"] = {"gate": 3, "stale": 1}
    status["failures"], status["unjudged"] = {"hand_in": 1}, {"raised": 2}
    status["figures"] = Figures(
        quorum=1, generation=2, tokens_merged=900, tokens_discarded=50, tokens_lost=10,
        merge_age_s=1.5, round_s=0.5, grace_s=0.1, staleness=0.2, merges_lost=3,
        unsound_merges=1, trouble="",
        not_durable="", up_bytes=7, down_bytes=8, goodput=0.9, uptime=1.0,
    )  # fmt: skip
    return status


@pytest.fixture
def monitor(tmp_path: Path) -> MonitorConfig:
    return MonitorConfig(targets=str(tmp_path / "targets"))


def scraped(run_dir: Path) -> dict[str, list[tuple[dict[str, str], float]]]:
    """What a scrape of the run's target gives, found the way that Prometheus finds it."""
    ((target,),) = [each["targets"] for each in json.loads((run_dir / TARGET).read_text())]
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_every_metric_is_scraped_with_its_labels(tmp_path: Path, monitor: MonitorConfig) -> None:
    status = a_full_status()
    exporter = Exporter(tmp_path / "demo-1", monitor, lambda: status)
    exporter.start()
    try:
        found = scraped(tmp_path / "demo-1")
        assert found.keys() == {metric.full_name for metric in METRICS}
        for metric in METRICS:
            for labels, _ in found[metric.full_name]:
                assert labels.keys() == {"run", *metric.labels}
                assert labels["run"] == "demo-1"
        assert [v for _, v in found["archipelago_tokens_trained_total"]] == [1_238_000]
        states = found["archipelago_island_state"]
        assert len(states) == 2 * len(get_args(IslandState))
        assert [s for labels, s in states if labels["state"] == "live"] == [1.0, 1.0]
        assert (tmp_path / "targets" / "demo-1.json").exists()
    finally:
        exporter.stop()
    assert not (tmp_path / "targets" / "demo-1.json").exists()
    assert not (tmp_path / "demo-1" / TARGET).exists()


def test_before_anything_is_known_nothing_is_said(tmp_path: Path, monitor: MonitorConfig) -> None:
    exporter = Exporter(tmp_path / "demo-1", monitor, lambda: None)
    exporter.start()
    assert scraped(tmp_path / "demo-1") == {}
    exporter.stop()


def test_a_port_in_use_is_a_users_mistake(tmp_path: Path, monitor: MonitorConfig) -> None:
    first = Exporter(tmp_path / "one", monitor, lambda: None)
    first.start()
    port = int(json.loads((tmp_path / "one" / TARGET).read_text())[0]["targets"][0].split(":")[1])
    taken = monitor.model_copy(update={"metrics_port": port})
    with pytest.raises(UserMistake, match=f"127.0.0.1:{port} cannot be listened at"):
        Exporter(tmp_path / "two", taken, lambda: None).start()
    first.stop()


def test_names_are_the_fields_with_units_and_help() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert len(names) >= 20
    for metric in METRICS:
        assert metric.help.endswith(".")
        assert not metric.name.endswith("_total")


def expressions() -> list[str]:
    """Of every panel, variable and alert."""
    board = json.loads((DASHBOARDS / "archipelago.json").read_text())
    panels = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    variables = [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    alerts = re.findall(r"expr: (.+)", (DASHBOARDS / "alerts.yml").read_text())
    assert len(alerts) == 7
    return [*panels, *variables, *alerts]


def test_boards_and_alerts_use_what_is_there_and_all_that_is_there() -> None:
    used = {name for expression in expressions() for name in NAMED.findall(expression)}
    assert used == {metric.full_name for metric in METRICS}
