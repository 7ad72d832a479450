"""Compare the time budgets of a run's islands with a profile of their processes by py-spy.

    python -m tests.goodput_profile [--for 60] [--step-s 0.12]      # needs `pip install py-spy`

Two islands are slowed down to steps of a given length, so that they compute for a part of the time.
py-spy looks at the training thread of one island a hundred times a second. The script prints the
percent of the time for which it computed and idled, by the profile and by the status, and exits
with 1 if they differ by more than two points.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.live.cli import TINY, Place, finish, place, until

MOST_POINTS = 2.0
FRAMES = {
    "computing": ("StepTiming.settle", "Inner.step"),
    "idle": ("Mailbox.next_to_do",),
}
"""Functions of the training thread in which it waits for the devices, or until a step is due."""


def budgets(here: Place) -> dict[str, dict[str, float]]:
    """Return the seconds of each island by activity."""
    return {each["island"]: each["time_s"] for each in here.last_status["islands"]}


def profiled(pid: int, for_s: float, spy: str, into: Path) -> tuple[str, dict[str, float]]:
    """Return the island of the process, and the percent of its samples in each activity.

    The samples are those of the training thread. The name of another thread has the island.
    """
    subprocess.run(
        [
            spy, "record", "--pid", str(pid), "--duration", str(int(for_s)), "--rate", "100",
            "--nonblocking", "--idle", "--threads", "--format", "raw", "--output", str(into),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    counts, stacks = Counter[str](), into.read_text()
    named = re.search(r": talk (\S+)#\d+;", stacks)
    assert named is not None, "no thread that talks for an island"
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        if not stack.partition(";")[0].endswith(": train"):
            continue
        counts["all"] += int(count)
        for activity, names in FRAMES.items():
            counts[activity] += int(count) * any(name in stack for name in names)
    return named[1], {activity: 100 * counts[activity] / counts["all"] for activity in FRAMES}


def main() -> int:
    """Run, compare, print, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--for", dest="for_s", type=float, default=60.0)
    parser.add_argument("--step-s", type=float, default=0.12)
    asked = parser.parse_args()
    if (spy := shutil.which("py-spy")) is None:
        parser.error("there is no py-spy here: pip install py-spy")
    with place() as here, tempfile.TemporaryDirectory() as folder:
        process = here.start(
            "run", str(TINY), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000", "--set", f"islands.0.step_s={asked.step_s}",
            "--set", "islands.0.batch_size=16", "--set", "data.window=128",
        )  # fmt: skip
        until(lambda: here.merges > 20)
        (pid, *_) = [
            pid for pid, command in here.left_running().items() if "ray::IslandActor" in command
        ]
        before = budgets(here)
        island, found = profiled(pid, asked.for_s, spy, Path(folder) / "stacks.txt")
        after = budgets(here)
        here.run("stop", str(here.run_dir))
        finish(process)
    told = dict[str, dict[str, float]]()
    for name, seconds in after.items():
        spent = {activity: each - before[name][activity] for activity, each in seconds.items()}
        told[name] = {each: 100 * spent[each] / sum(spent.values()) for each in FRAMES}
    points = max(abs(told[island][each] - found[each]) for each in FRAMES)
    print(json.dumps({"island": island, "profile": found, "status": told, "points": points}))
    return int(points > MOST_POINTS)


if __name__ == "__main__":
    sys.exit(main())
