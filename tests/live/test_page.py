"""The live page of a real run in a real browser, and the time of its islands, with a kill."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cluster.launch.page_link import page_link
from cluster.syncer.badput import Badput
from coordinator.errors import UserMistake
from islands.time_budget import Activity
from tests.live.chromium import Chromium
from tests.live.cli import TINY, Place, finish, last_status, place, until

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(600)]

ISLANDS = 3
VISIBLE_S = 2.0
"""Seconds after which a kill is on the page."""
WATCH = """
window.seen = {};
new MutationObserver(() => {
  for (const row of document.querySelectorAll('#islands tbody tr')) {
    const name = row.children[0].textContent, state = row.children[1].textContent;
    if (state !== 'live' && !(name in window.seen)) window.seen[name] = [Date.now() / 1000, state];
  }
}).observe(document.querySelector('#islands'),
  {subtree: true, childList: true, characterData: true});
"""
STATES = (
    "[...document.querySelectorAll('#islands tbody tr td:nth-child(2)')].map(c => c.textContent)"
)


def link_of(here: Place) -> str | None:
    """Return a link to the page, None while the run has none."""
    try:
        return page_link(here.run_dir)
    except UserMistake:
        return None


async def visited(here: Place, profile: Path) -> tuple[float, str]:
    """Open the page, kill an island, and return after how long the page showed it, and as what."""
    async with Chromium(profile) as browser:
        await browser.resize(1280, 1600)
        await browser.open(await asyncio.to_thread(until, lambda: link_of(here)))
        await browser.until(STATES, lambda states: states == ["live"] * ISLANDS)
        await browser.until("document.querySelector('#loss').ariaLabel", lambda t: " now" in t)
        await browser.run(WATCH)
        victims = [
            pid for pid, command in here.left_running().items() if "ray::IslandActor" in command
        ]
        killed_s = time.time()
        os.kill(victims[0], signal.SIGKILL)
        seen = await browser.until("window.seen", bool)
        ((_, (seen_s, state)),) = [*seen.items()][:1]
        for scheme in ("dark", "light"):
            await browser.prefers(scheme)
            await browser.until(
                "document.querySelectorAll('#rate canvas').length", lambda n: n == 1
            )
        await browser.resize(390, 2000, mobile=True)
        assert await browser.run("document.documentElement.scrollWidth") <= 390
        await browser.until(STATES, lambda states: states == ["live"] * ISLANDS)
        events = await browser.run("document.querySelector('#events').textContent")
        assert "lost" in events
        bars = "[...document.querySelectorAll('#islands .budget')].map(b => b.title)"
        titles = await browser.until(bars, lambda all_: any("dead" in each for each in all_))
        assert all("computing" in each for each in titles)
        assert browser.complaints == []
        own = {address.split("/")[2] for address in browser.addresses if "//" in address}
        assert len(own) == 1, "the page asks this run alone"
        return seen_s - killed_s, state


def test_page_shows_a_kill_and_budgets_add_up(tmp_path: Path) -> None:
    with place() as here:
        process = here.start(
            "run", str(TINY), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000", "--set", f"islands.0.count={ISLANDS}",
            "--set", "islands.0.step_s=0.2",
        )  # fmt: skip
        took_s, state = asyncio.run(visited(here, tmp_path / "profile"))
        until(lambda: time_of(last_status(here.run_dir)).get("dead", 0.0) > 0)
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(process)
        assert finished.code == 0, finished.err
        assert "page     http://127.0.0.1:" in finished.err
        rows = [*map(json.loads, (here.run_dir / "metrics.jsonl").read_text().splitlines())]
    assert took_s < VISIBLE_S, f"the page showed {state} after {took_s:.2f} s"
    check_budgets(finished.json, rows)


def time_of(status: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of all islands by activity."""
    total = dict.fromkeys(map(str, Activity), 0.0)
    for island in status.get("islands", ()):
        for activity, seconds in island.get("time_s", {}).items():
            total[activity] += seconds
    return total


def check_budgets(summary: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
    """Check the summary against lives that are measured from outside: the looks of the fleet.

    Each island holds its devices from the start of the run to its end, so its life is the elapsed
    time of the last look before the end.
    """
    budgets = summary["island_seconds"]
    assert len(budgets) == ISLANDS
    running_s = [row["elapsed_s"] for row in rows if row["phase"] != "finished"][-1]
    ended_s = next(row["elapsed_s"] for row in rows if row["phase"] == "finished")
    for name, budget in budgets.items():
        assert budget.keys() == {each.value for each in Activity}
        life_s = math.fsum(budget.values())
        assert 0.995 * running_s <= life_s <= 1.005 * ended_s, (name, budget, running_s, ended_s)
        for activity in ("computing", "starting", "compiling", "restoring", "copying"):
            assert budget[activity] > 0, (name, activity)
        assert budget["idle"] > budget["computing"], "steps of 0.2 s idle more than they compute"
    dead_s = [budget["dead"] for budget in budgets.values()]
    assert sum(each > 0 for each in dead_s) == 1, dead_s
    total_s = math.fsum(math.fsum(each.values()) for each in budgets.values())
    lost_s = summary["badput_s"]
    assert [*lost_s] == [each.value for each in Badput]
    assert lost_s["infrastructure_recovery_from_disruption"] == pytest.approx(max(dead_s), abs=0.01)
    assert lost_s["elastic_reinitialization"] > 0
    assert summary["goodput_s"] + math.fsum(lost_s.values()) == pytest.approx(total_s, rel=0.005)
    # each time in the status only grows, and is never more than the life
    for before, after in pairwise(rows):
        for old, new in zip(before["islands"], after["islands"], strict=False):
            if old["island"] != new["island"]:
                continue
            for activity, seconds in old.get("time_s", {}).items():
                assert new["time_s"][activity] >= seconds - 0.002, (old, new)
            if "life_s" in new:
                assert math.fsum(new["time_s"].values()) <= new["life_s"] + 0.1
