"""A run's HTTP port with a status of many islands and fragments, and what it costs.

    python -m tests.page_at_size [--islands 64] [--fragments 64] [--requests 200] [--looks 5]

A process serves the page of a status that changes twice a second. The script prints the CPU
milliseconds of that process for each page, scrape and status, beyond what it needs without
requests; the CPU milliseconds per second for each open page; and the milliseconds from opening the
page in a headless Chromium until the row of each island is drawn, a new profile each time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import psutil

from cluster.config.schema import MonitorConfig
from cluster.fleet.exporter import Exporter
from cluster.status import RunStatus
from cluster.storage.runs import TARGET, TOKEN
from islands.time_budget import Activity
from tests.cluster.test_progress import a_status
from tests.live.chromium import Chromium
from tests.live.cli import until

CHANGE_S = 0.5
"""Seconds between two statuses, as those of a fleet."""
SHARE_S = 10.0
"""Seconds over which the CPU time of a process is measured."""
EVENTS = 100
"""Events that the page shows at most."""
DRAWN = """
new Promise(done => {
  const look = () => document.querySelectorAll('#islands tbody tr').length < COUNT
    ? requestAnimationFrame(look)
    : requestAnimationFrame(() => done(performance.now()));
  look();
})
"""
"""A script that waits for the rows of the islands, and then for one more picture."""


def large_status(islands: int, fragments: int) -> RunStatus:
    """Return a status with these islands and fragments, a curve and events."""
    status = a_status(islands, fragments)
    for number, island in enumerate(status["islands"]):
        times = {str(each): 10.0 + number + place for place, each in enumerate(Activity)}
        island.update(time_s=times, recent_s=dict(times), life_s=sum(times.values()))
        island.update(why="steps", ideal_step_s=0.2, step_deviation_s=0.01, loss_spikes=0)
    status["heldout"] = [(t, 5.5 - t / 100) for t in range(0, 150, 3)]
    status["events"] = [
        {
            "schema": 1,
            "unix_s": float(number),
            "elapsed_s": float(number),
            "run": "demo-1",
            "t": number,
            "kind": "lost",
            "what": f"island local-{number % islands} was lost",
            "island": f"local-{number % islands}",
        }
        for number in range(EVENTS)
    ]
    return status


def changed(status: Any, looks: int) -> RunStatus:
    """Return the status with all counters of islands and fragments moved on."""
    moved = {
        "elapsed_s": 127.0 + CHANGE_S * looks,
        "t": 150 + looks // 100,
        "tokens_trained": 1_238_000 + 1000 * looks,
        "islands": [
            {**each, "steps": each["steps"] + looks, "loss": 2.5 - looks / 1e4}
            for each in status["islands"]
        ],
        "fragments": [
            {**each, "version": each["version"] + looks, "round": {"arrived": 1, "asked": 3}}
            for each in status["fragments"]
        ],
    }
    return cast("RunStatus", {**status, **moved})


def serve(folder: Path, islands: int, fragments: int) -> None:
    """Serve until the standard input ends."""
    first, began_s = large_status(islands, fragments), time.monotonic()
    newest = lru_cache(1)(partial(changed, first))

    def status() -> RunStatus:
        return newest(int((time.monotonic() - began_s) / CHANGE_S))

    exporter = Exporter(folder, MonitorConfig(metrics_port=0, targets=str(folder)), status)
    exporter.start()
    sys.stdin.read()
    exporter.stop()


@dataclass(frozen=True, slots=True)
class Served:
    """A process that serves a large status."""

    process: psutil.Process
    address: str
    token: str

    def get(self, path: str) -> bytes:
        """Return the answer of the port."""
        asked = urllib.request.Request(
            self.address + path,
            headers={"Authorization": f"Bearer {self.token}", "Accept-Encoding": "gzip"},
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.read()

    @property
    def link(self) -> str:
        """A link to the page, which works once."""
        return json.loads(self.get("/link"))["link"]

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process so far."""
        return sum(self.process.cpu_times()[:2])


@contextmanager
def served(folder: Path, islands: int, fragments: int) -> Generator[Served]:
    """Serve a large status from a process of its own."""
    command = [sys.executable, "-m", "tests.page_at_size", "--serve", str(folder)]
    command += ["--islands", str(islands), "--fragments", str(fragments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        target = folder / TARGET
        until(lambda: (target.exists() and (folder / TOKEN).exists()) or process.poll() is not None)
        assert process.poll() is None, "the server has ended"
        ((host,),) = (each["targets"] for each in json.loads(target.read_text()))
        token = (folder / TOKEN).read_text()
        yield Served(psutil.Process(process.pid), f"http://{host}", token)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def per_request_ms(server: Served, path: str, count: int) -> float:
    """Return the CPU milliseconds of one request beyond those of a quiet process."""
    server.get(path)
    before_s, began_s = server.cpu_s(), time.monotonic()
    for _ in range(count):
        server.get(path)
    used_s, took_s = server.cpu_s() - before_s, time.monotonic() - began_s
    return 1e3 * (used_s - share(server) * took_s) / count


def share(server: Served) -> float:
    """Return the CPU seconds of the process per second, over SHARE_S."""
    before_s, began_s = server.cpu_s(), time.monotonic()
    until(lambda: time.monotonic() >= began_s + SHARE_S)
    return (server.cpu_s() - before_s) / (time.monotonic() - began_s)


async def drawn_ms(server: Served, islands: int, profile: Path) -> tuple[float, list[str]]:
    """Open the page in a new browser; return when all rows are drawn, and its complaints."""
    async with Chromium(profile) as browser:
        await browser.resize(1280, 1600)
        await browser.open(await asyncio.to_thread(lambda: server.link))
        await browser.until("document.title", lambda title: "Archipelago" not in title)
        await browser.open(server.address + "/")  # with the cookie: the page alone is measured
        taken = await browser.run(DRAWN.replace("COUNT", str(islands)))
        return float(taken), browser.complaints


async def open_page_share(server: Served, profile: Path) -> float:
    """Return the CPU seconds per second of the process while one page is open."""
    async with Chromium(profile) as browser:
        await browser.open(await asyncio.to_thread(lambda: server.link))
        await browser.until("document.querySelectorAll('#islands tbody tr').length", bool)
        return await asyncio.to_thread(share, server)


def measured(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return all figures."""
    figures: dict[str, Any] = {"islands": asked.islands, "fragments": asked.fragments}
    (folder / "run").mkdir()
    with served(folder / "run", asked.islands, asked.fragments) as server:
        for name, path in (("page", "/"), ("scrape", "/metrics"), ("status", "/status")):
            figures[f"{name}_bytes"] = len(server.get(path))
            figures[f"{name}_cpu_ms"] = per_request_ms(server, path, asked.requests)
        quiet, opened = share(server), asyncio.run(open_page_share(server, folder / "open"))
        figures["quiet_cpu_ms_per_s"] = 1e3 * quiet
        figures["open_page_cpu_ms_per_s"] = 1e3 * (opened - quiet)
        found = [
            asyncio.run(drawn_ms(server, asked.islands, folder / f"profile-{number}"))
            for number in range(asked.looks)
        ]
        figures["drawn_ms"] = sorted(each for each, _ in found)
        figures["drawn_ms_median"] = statistics.median(figures["drawn_ms"])
        figures["complaints"] = [text for _, texts in found for text in texts]
    return figures


def main() -> None:
    """Serve, or measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--islands", type=int, default=64)
    parser.add_argument("--fragments", type=int, default=64)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--looks", type=int, default=5)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve is not None:
        serve(asked.serve, asked.islands, asked.fragments)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measured(asked, Path(folder)), indent=1))


if __name__ == "__main__":
    main()
