"""A real Prometheus with the project's alerts, which finds runs by their folder of targets."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.live.cli import MARK, ROOT, until


@dataclass(frozen=True, slots=True)
class Prometheus:
    url: str
    run: str = ""
    """The value of `$run` in expressions."""

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that answer an expression.

        Errors: `HTTPError` if Prometheus does not understand it.
        """
        asked = expression.replace("$run", self.run).replace("$group", ".*")
        query = urllib.parse.urlencode({"query": asked})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def number(self, expression: str) -> float | None:
        found = self.ask(expression)
        return float(found[0]["value"][1]) if found else None

    def alerts(self) -> dict[str, dict[str, str]]:
        """Return the labels of each alert that fires, by its name."""
        found = self.ask('ALERTS{alertstate="firing"}')
        return {each["metric"]["alertname"]: each["metric"] for each in found}


@contextmanager
def prometheus_of(
    home: Path,
    *,
    run: str = "",
    host: str = "127.0.0.1",
    ray_page: str | None = None,
    inside: Callable[..., Sequence[str]] = lambda *command: command,
) -> Generator[Prometheus]:
    """Run Debian's Prometheus for the runs of a home.

    `host`: the address at which it answers. `ray_page`: the address of a page of Ray's metrics,
    which it scrapes too. `inside`: puts a command into a network namespace.
    """
    folder = home / "prometheus"
    folder.mkdir()
    shipped = ROOT / "dashboards"
    config = yaml.safe_load((shipped / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(shipped / file) for file in config["rule_files"]]
    runs, ray = config["scrape_configs"]
    targets = str(home / ".archipelago" / "targets" / "*.json")
    runs["file_sd_configs"] = [{"files": [targets], "refresh_interval": "1s"}]
    del ray["file_sd_configs"]  # this machine may have another Ray
    ray["static_configs"] = [{"targets": [ray_page] if ray_page is not None else []}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    program = shutil.which("prometheus")
    assert program is not None, "this test needs Debian's package prometheus"
    port = free_port()
    process = subprocess.Popen(
        inside(
            program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder}",
            f"--web.listen-address={host}:{port}",
        ),
        env={**os.environ, MARK: str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        prometheus = Prometheus(f"http://{host}:{port}", run)
        until(prometheus.is_ready)
        yield prometheus
    finally:
        process.terminate()
        process.wait(20)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
