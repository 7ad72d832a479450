"""The HTTP port of a run: a Prometheus target, and the file by which it is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.config.schema import MonitorConfig
from cluster.fleet.http_port import application, make_token, serve
from cluster.fleet.metrics import METRICS, PREFIX, Kind
from cluster.status import RunStatus
from cluster.storage.files import write_json
from cluster.storage.runs import TARGET, TOKEN
from coordinator.errors import UserMistake


class _OfRun(Collector):
    """Reads all metrics off one status: what one scrape shows belongs together."""

    def __init__(self, status: Callable[[], RunStatus | None]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        return []  # so that registering asks for no status

    def collect(self) -> Iterator[Metric]:
        if (status := self._status()) is None:
            return
        for declared in METRICS:
            family: Any = GaugeMetricFamily
            if declared.kind is Kind.COUNTER:
                family = CounterMetricFamily
            metric = family(PREFIX + declared.name, declared.help, labels=("run", *declared.labels))
            for labels, value in declared.read(status):
                metric.add_metric((status["run"], *labels), value)
            yield metric


class Exporter:
    """A run's HTTP port, and the files by which it is found."""

    def __init__(
        self, run_dir: Path, monitor: MonitorConfig, status: Callable[[], RunStatus | None]
    ) -> None:
        self._monitor, self._run = monitor, run_dir.name
        self._run_dir, self._status = run_dir, status
        self._files = [run_dir / TARGET, targets_of(monitor) / f"{run_dir.name}.json"]
        self._registry = CollectorRegistry()
        self._registry.register(_OfRun(status))
        self._server: tuple[WSGIServer, Thread] | None = None

    def start(self) -> None:
        """Listen, and say where.

        Errors: `UserMistake` if the port is not to be had.
        """
        host, port = self._monitor.metrics_host, self._monitor.metrics_port
        if not self._monitor.metrics:
            return
        try:
            metrics: Any = make_wsgi_app(self._registry)
            token = make_token(self._run_dir)
            self._server = serve(application(metrics, self._status, token), host, port)
        except OSError as error:
            raise UserMistake(
                f"monitor.metrics_port: {host}:{port} cannot be listened at: {error.strerror}; "
                "0 takes a free one"
            ) from error
        address = f"{host}:{self._server[0].server_port}"
        for file in self._files:
            write_json(file, [{"targets": [address], "labels": {"job": "archipelago"}}])

    def stop(self) -> None:
        if self._server is None:
            return
        for file in (*self._files, self._run_dir / TOKEN):
            file.unlink(missing_ok=True)
        server, thread = self._server
        server.shutdown()
        server.server_close()
        thread.join()
        self._server = None


def targets_of(monitor: MonitorConfig) -> Path:
    """The folder that Prometheus watches: one file for each live run of this machine."""
    return Path(monitor.targets).expanduser()
