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

from tests.live.cli import MARK, ROOT


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
    inside: Callable[..., Sequence[str]] = lambda *command: command,
) -> Generator[Prometheus]:
    """Run Debian's Prometheus for the runs of a home.

    `host`: the address at which it answers. `inside`: puts a command into a network namespace.
    """
    folder = home / "prometheus"
    folder.mkdir()
    targets = home / ".archipelago" / "targets" / "*.json"
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{ROOT / 'dashboards'}/rules.yml, {ROOT / 'dashboards'}/alerts.yml]\n"
        "scrape_configs:\n"
        "  - job_name: archipelago\n"
        f"    file_sd_configs: [{{files: ['{targets}'], refresh_interval: 1s}}]\n"
    )
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
        yield Prometheus(f"http://{host}:{port}", run)
    finally:
        process.terminate()
        process.wait(20)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
