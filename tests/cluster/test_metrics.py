"""Tests that the table of metrics is exported; tests/archipelago/test_boards.py has their use."""

from __future__ import annotations

import json
import math
import re
import socketserver
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from cluster.config.schema import MonitorConfig
from cluster.fleet.exporter import Exporter
from cluster.fleet.exposition import metrics_text
from cluster.fleet.metrics import METRICS, PREFIX, Kind
from cluster.fleet.ray_metrics import EVERY_S, RayMetrics
from cluster.launch.remote_status import status_at
from cluster.launch.status_stream import status_stream
from cluster.status import ExpectedStatus, Figures, IslandState, LinkStatus, RunStatus
from cluster.storage import runs
from cluster.storage.files import json_text
from cluster.storage.runs import TARGET, TOKEN
from cluster.syncer.badput import Badput
from coordinator.errors import UserMistake
from islands.time_budget import Activity
from tests.cluster.test_progress import a_status


def a_full_status() -> Any:
    status = a_status(islands=2)
    status["refusals"] = {"gate": 3, "stale": 1}
    status["failures"], status["unjudged"] = {"hand_in": 1}, {"raised": 2}
    status["figures"] = Figures(
        quorum=1, generation=2, tokens_merged=900, tokens_discarded=50, tokens_lost=10,
        merge_age_s=1.5, round_s=0.5, grace_s=0.1, staleness=0.2, overlap_steps=1.5,
        outer_cosine=0.5, outer_rate=0.6, distrusted_lives=1, largest_share=1.6,
        merges_lost=3,
        unsound_merges=1, trouble="",
        not_durable="", damage="", up_bytes=7, down_bytes=8, goodput=0.9, uptime=1.0,
        badput_s={each.value: 1.5 for each in Badput},
        rolling_goodput={"60": 0.9, "300": 0.8, "900": None},
    )  # fmt: skip
    for island in status["islands"]:
        island["time_s"] = {each.value: 2.5 for each in Activity}
        island["ideal_step_s"], island["step_deviation_s"] = 0.5, 0.01
        island["slow"], island["loss_spikes"] = False, 2
        island["metrics"] = {"accuracy": 0.5, "overflow": None}
        island["contribution_effect"], island["harmful_contributions"] = -0.002, 1
    status["figures"]["loss_spikes"] = 4
    status["expected"] = ExpectedStatus(
        t=120, tokens=1_000_000, loss=2.4, low=2.3, high=2.5, heldout_loss=2.45, inside=True
    )
    status["heldout_by_region"] = {"eu": 2.5, "us": None}
    status["links"] = [
        LinkStatus(
            link="eu", direction=direction, bytes=9, transfers=3, transfer_s=1.5, late=1,
            bits_s=8.0, usual_bits_s=16.0, spread=0.1, utilisation=0.25, queue_s=2.0, lagging=False,
            slow=False, down=False,
        )
        for direction in ("up", "down")
    ]  # fmt: skip
    return status


@pytest.fixture
def monitor(tmp_path: Path) -> MonitorConfig:
    return MonitorConfig(targets=str(tmp_path / "targets"))


def scraped(run_dir: Path) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Scrape the run's target, which is found in the way that Prometheus finds it."""
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
        assert [*(tmp_path / "targets").glob("demo-1-*.json")]
    finally:
        exporter.stop()
    assert not [*(tmp_path / "targets").iterdir()]
    assert not (tmp_path / "demo-1" / TARGET).exists()


class OfLibrary(Collector):
    """All metrics as `prometheus_client` has them."""

    def __init__(self, status: RunStatus) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for declared in METRICS:
            kind: Any = CounterMetricFamily if declared.kind is Kind.COUNTER else GaugeMetricFamily
            metric = kind(PREFIX + declared.name, declared.help, labels=("run", *declared.labels))
            for labels, value in declared.read(self._status):
                metric.add_metric((self._status["run"], *labels), value)
            yield metric


def test_text_of_the_metrics_is_that_of_the_library() -> None:
    status = a_full_status()
    status["islands"][0]["group"] = 'a "quoted" \\ group\nof two lines'
    losses = math.nan, math.inf, -math.inf, 1e-7, 3.4e38
    status["islands"] = [
        {**status["islands"][0], "island": f"i{place}", "loss": loss}
        for place, loss in enumerate(losses)
    ]
    registry = CollectorRegistry()
    registry.register(OfLibrary(status))
    found, wanted = (
        [
            (
                family.name,
                family.type,
                family.documentation,
                sample.name,
                sample.labels,
                repr(sample.value),
            )
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]
        for text in (metrics_text(status), generate_latest(registry).decode())
    )
    assert found == wanted
    assert "quoted" in str(found)
    assert all(each in str(found) for each in ("nan", "inf", "-inf", "1e-07", "3.4e+38"))


def test_names_of_metrics_and_labels_need_no_escapes() -> None:
    names = [name for metric in METRICS for name in (metric.full_name, *metric.labels)]
    assert [name for name in names if not re.fullmatch("[a-z][a-z0-9_]*", name)] == []


def test_target_is_not_written_if_ray_exports_the_metrics(
    tmp_path: Path, monitor: MonitorConfig
) -> None:
    through_ray = monitor.model_copy(update={"ray_metrics": True})
    exporter = Exporter(tmp_path / "demo-1", through_ray, a_full_status)
    exporter.start()
    try:
        assert scraped(tmp_path / "demo-1")
        assert not (tmp_path / "targets").exists()
    finally:
        exporter.stop()


class FakeGauge:
    """A gauge that keeps its values; one that is broken raises."""

    def __init__(self, values: dict[tuple[str, ...], float], name: str, labels: tuple[str, ...]):
        self._values, self._name, self._labels = values, name, labels
        self.is_broken = False

    def set(self, value: float, labels: dict[str, str]) -> None:
        if self.is_broken:
            raise RuntimeError("no agent")
        assert tuple(labels) == self._labels
        self._values[self._name, *labels.values()] = value


def test_ray_gets_the_values_of_the_page_and_its_errors_end_no_run(
    tmp_path: Path, monitor: MonitorConfig
) -> None:
    values, gauges, now = dict[tuple[str, ...], float](), list[FakeGauge](), [0.0]

    def make(name: str, help: str, labels: tuple[str, ...]) -> Any:
        gauges.append(FakeGauge(values, name, labels))
        return gauges[-1]

    status, ray = a_full_status(), RayMetrics(make, lambda: now[0])
    ray.look(status)
    exporter = Exporter(tmp_path / "demo-1", monitor, lambda: status)
    exporter.start()
    try:
        page = scraped(tmp_path / "demo-1")
    finally:
        exporter.stop()
    declared = {metric.full_name: ("run", *metric.labels) for metric in METRICS}
    assert values == {
        (name, *(labels[each] for each in declared[name])): value
        for name, samples in page.items()
        for labels, value in samples
    }
    values.clear()
    now[0] = EVERY_S / 2
    ray.look(status)
    assert not values, "it is too early"
    for gauge in gauges:
        gauge.is_broken = True
    now[0] = EVERY_S
    ray.look(status)
    assert "RuntimeError: no agent" in str(ray.trouble)
    for gauge in gauges:
        gauge.is_broken = False
    now[0] = 2 * EVERY_S
    ray.look(status)
    assert values
    assert ray.trouble is None


def test_runs_of_one_name_have_a_target_each(tmp_path: Path, monitor: MonitorConfig) -> None:
    first, other = (
        Exporter(tmp_path / folder / "demo-1", monitor, lambda: None) for folder in ("a", "b")
    )
    first.start()
    other.start()
    assert len([*(tmp_path / "targets").iterdir()]) == 2
    first.stop()
    assert len([*(tmp_path / "targets").iterdir()]) == 1, "the other one's stays"
    other.stop()
    assert not [*(tmp_path / "targets").iterdir()]


def test_address_of_ipv6_is_in_brackets(tmp_path: Path, monitor: MonitorConfig) -> None:
    here = monitor.model_copy(update={"metrics_host": "::1"})
    exporter = Exporter(tmp_path / "demo-1", here, lambda: None)
    exporter.start()
    try:
        ((target,),) = [
            each["targets"] for each in json.loads((tmp_path / "demo-1" / TARGET).read_text())
        ]
        assert target.startswith("[::1]:")
        assert scraped(tmp_path / "demo-1") == {}
    finally:
        exporter.stop()


def test_exports_nothing_before_the_first_status(tmp_path: Path, monitor: MonitorConfig) -> None:
    exporter = Exporter(tmp_path / "demo-1", monitor, lambda: None)
    exporter.start()
    assert scraped(tmp_path / "demo-1") == {}
    exporter.stop()


def test_alerts_are_exported_before_the_first_status(
    tmp_path: Path, monitor: MonitorConfig
) -> None:
    """A fleet that restarts while the syncer cannot answer has no figures, and counters at zero."""
    alerts = {**a_status(), "run": "demo-1", "alerts": ["the storage is away"]}
    exporter = Exporter(tmp_path / "demo-1", monitor, lambda: None, lambda: cast(RunStatus, alerts))
    exporter.start()
    assert scraped(tmp_path / "demo-1") == {"archipelago_alerts": [({"run": "demo-1"}, 1.0)]}
    exporter.stop()


def test_port_in_use_is_a_user_mistake(tmp_path: Path, monitor: MonitorConfig) -> None:
    first = Exporter(tmp_path / "one", monitor, lambda: None)
    first.start()
    port = int(json.loads((tmp_path / "one" / TARGET).read_text())[0]["targets"][0].split(":")[1])
    taken = monitor.model_copy(update={"metrics_port": port})
    with pytest.raises(UserMistake, match=f"127.0.0.1:{port} cannot be listened at"):
        Exporter(tmp_path / "two", taken, lambda: None).start()
    first.stop()


def test_metric_names_are_unique_and_have_help() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert len(names) >= 20
    for metric in METRICS:
        assert metric.help.endswith(".")
        assert not metric.name.endswith("_total")


def get(url: str, token: str | None = None) -> tuple[int, str]:
    asked = urllib.request.Request(
        url, headers={"Authorization": f"Bearer {token}"} if token else {}
    )
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_local_run_is_watched_through_its_port(tmp_path: Path) -> None:
    run_dir, status = tmp_path / "demo-1", a_status(islands=2)
    run_dir.mkdir()
    status["run"] = "demo-1"
    seen: list[RunStatus | None] = [None]
    monitor = MonitorConfig(targets=str(tmp_path / "targets"))
    exporter = Exporter(run_dir, monitor, lambda: seen[0])
    exporter.start()
    try:
        (target,) = json.loads((run_dir / TARGET).read_text())[0]["targets"]
        assert get(f"http://{target}/healthz") == (503, "starting\n")
        assert status_at(run_dir) is None, "there is nothing to see yet"
        seen[0] = status
        assert get(f"http://{target}/healthz") == (200, "ok\n")
        assert get(f"http://{target}/status")[0] == 401
        assert get(f"http://{target}/status", (run_dir / TOKEN).read_text())[0] == 200
        assert json_text(status_at(run_dir)) == json_text(status)
        assert "archipelago_merges_total" in get(f"http://{target}/metrics")[1]
        assert (run_dir / TOKEN).stat().st_mode & 0o777 == 0o600
        status["run"] = "another"
        assert status_at(run_dir) is None, "the port is another run's by now"
    finally:
        exporter.stop()
    assert status_at(run_dir) is None
    assert not (run_dir / TOKEN).exists()


def test_top_follows_a_run_through_its_port_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Ray client is started; after the end of the run its last status is shown."""
    run_dir, status = tmp_path / "demo-1", a_status(islands=2)
    run_dir.mkdir()
    status["run"] = "demo-1"
    live = runs.Live("demo-1", "demo-1", "nowhere", pid=1)
    going: list[runs.Live | None] = [live]
    monkeypatch.setattr(runs, "reach", lambda *_: live)
    monkeypatch.setattr(runs, "here", lambda _: run_dir)
    monkeypatch.setattr(runs, "live_of", lambda _: going[0])
    exporter = Exporter(run_dir, MonitorConfig(targets=str(tmp_path / "targets")), lambda: status)
    exporter.start()
    seen = status_stream(None, None, 0.01)
    try:
        for t in (3, 4, 5):
            status["t"] = t
            assert next(seen)["t"] == t
    finally:
        exporter.stop()
    going[0] = None
    (run_dir / "metrics.jsonl").write_text(json_text({**status, "t": 9}) + "\n")
    assert [each["t"] for each in seen] == [9]


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n[1]",
        b"HTTP/1.0 200 OK\r\n\r\nnull",
        b'HTTP/1.0 200 OK\r\n\r\n{"heldout": [7]}',
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{",
    ],
)
def test_other_service_on_the_port_of_a_run_is_not_mistaken_for_it(
    tmp_path: Path, said: bytes
) -> None:
    class Another(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(said)

    run_dir = tmp_path / "demo-1"
    run_dir.mkdir()
    (run_dir / TOKEN).write_text("secret")
    with socketserver.TCPServer(("127.0.0.1", 0), Another) as server:
        target = f"127.0.0.1:{server.server_address[1]}"
        (run_dir / TARGET).write_text(json.dumps([{"targets": [target]}]))
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert status_at(run_dir) is None
        thread.join()


def test_files_that_cannot_be_written_are_written_later(
    tmp_path: Path, monitor: MonitorConfig
) -> None:
    """The port listens meanwhile, and `tend` returns the reason."""
    run_dir = tmp_path / "demo-1"
    run_dir.write_text("a file where the run directory shall be")
    exporter = Exporter(run_dir, monitor, lambda: a_status(islands=1))
    exporter.start()
    try:
        assert "cannot find the run" in str(exporter.tend())
        run_dir.unlink()
        assert exporter.tend() is None
        assert scraped(run_dir)
        assert (run_dir / TOKEN).stat().st_mode & 0o777 == 0o600
    finally:
        exporter.stop()


def test_port_in_use_is_retried_if_it_is_not_needed(tmp_path: Path, monitor: MonitorConfig) -> None:
    first = Exporter(tmp_path / "one", monitor, lambda: None)
    first.start()
    port = int(json.loads((tmp_path / "one" / TARGET).read_text())[0]["targets"][0].split(":")[1])
    taken = monitor.model_copy(update={"metrics_port": port})
    second = Exporter(tmp_path / "two", taken, lambda: None)
    second.start(needed=False)
    assert "cannot be listened at" in str(second.tend())
    first.stop()
    assert second.tend() is None
    second.stop()
