"""Measure the CPU time of the fleet and its trackers, beside that of the islands.

    python -m tests.fleet_cost [--islands 2] [--for 120] [--every 10]

A real run with both trackers (TensorBoard, and wandb offline), metrics that are scraped and one
open page. The script prints the CPU seconds of the processes by their role, over the seconds of
`--for`, and the share of fleet and trackers in that of the islands.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

from cluster.launch.page_link import page_link
from cluster.storage.runs import TARGET
from tests.live.chromium import Chromium
from tests.live.cli import Place, cpu_s, finish, place, until

ROLES = {
    "ray::IslandActor": "islands",
    "ray::FleetActor": "fleet",
    "wandb": "trackers",
    "ray::SyncerActor": "syncer",
    "ray::ShardActor": "shards",
    "ray::EvaluatorActor": "evaluator",
}
"""The start of a process's command, and its role."""


def by_role(here: Place) -> dict[str, float]:
    """Return the CPU seconds of the processes of the run, by role."""
    total = defaultdict[str, float](float)
    for pid, command in here.left_running().items():
        role = next((role for start, role in ROLES.items() if start in command), "others")
        total[role] += cpu_s(pid)
    return total


async def measured(here: Place, for_s: float, every_s: float, profile: Path) -> dict[str, float]:
    """Return the CPU seconds by role while a page is open and the metrics are scraped."""
    ((target,),) = [each["targets"] for each in json.loads((here.run_dir / TARGET).read_text())]
    async with Chromium(profile) as browser:
        await browser.open(await asyncio.to_thread(page_link, here.run_dir))
        await browser.until("document.querySelectorAll('#islands tbody tr').length", bool)
        before, began_s = by_role(here), time.monotonic()
        for scraped in range(int(for_s / every_s)):
            await asyncio.to_thread(scrape, target)
            next_s = began_s + (scraped + 1) * every_s
            await asyncio.to_thread(until, lambda next_s=next_s: time.monotonic() >= next_s)
        after = by_role(here)
    return {role: after[role] - before.get(role, 0.0) for role in after}


def scrape(target: str) -> None:
    """Read the metrics once."""
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=60) as answer:
        answer.read()


def main() -> None:
    """Run, measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--islands", type=int, default=2)
    parser.add_argument("--for", dest="for_s", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two scrapes")
    asked = parser.parse_args()
    os.environ["WANDB_MODE"] = "offline"
    with place() as here, tempfile.TemporaryDirectory() as folder:
        (here.folder / "cost.toml").write_text(
            f'[task]\npreset = "byte-tiny"\n[[islands]]\ngroup = "local"\ncount = {asked.islands}\n'
            "resources = {CPU = 0.2}\n"
        )
        process = here.start(
            "run", str(here.folder / "cost.toml"), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000",
            "--set", 'monitor.track=["tensorboard", "wandb"]',
        )  # fmt: skip
        until(lambda: here.merges > 20)
        used = asyncio.run(measured(here, asked.for_s, asked.every, Path(folder)))
        merges = here.merges
        here.run("stop", str(here.run_dir))
        finish(process)
    share = (used["fleet"] + used.get("trackers", 0.0)) / used["islands"]
    figures = {role: round(each, 2) for role, each in sorted(used.items())}
    print(json.dumps({"cpu_s": figures, "merges": merges, "fleet_share": share}))


if __name__ == "__main__":
    main()
