"""The benchmark `archipelago bench accelerator`: steps, hooks, kernels and a study on one device.

    python -m archipelago.lab.bench.accelerator [--quick] [--out DIR] [--budget SECONDS] [--json]

This needs neither Ray nor typer nor rich, and does not import JAX. Each part runs in a process of
its own (`accelerator_parts`), one after the other. So a part that fails or runs out of time leaves
all others as they are. `DIR/accelerator.json` is replaced whenever there are new figures.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from archipelago.lab.bench.accelerator_child import Child, start_part
from archipelago.lab.bench.accelerator_figures import (
    ARMS,
    BASE,
    KEYS,
    QUICK_STEPS,
    STEPS,
    gaps,
    planned_steps,
    row,
)
from cluster.storage.files import json_bytes, json_text

FILE = "accelerator.json"
"""The name of the file with the figures."""
BUDGET_S = 520.0
"""Seconds for everything, by default."""
QUICK_BUDGET_S = 600.0
"""Seconds for the quick form: far more than it needs, as other work may keep the machine busy."""
PARTS: Mapping[str, float] = {"bench-125m": 140.0, "bench-1b": 190.0}
"""The presets in their order, and the seconds that each may take at most."""
QUICK_PARTS: Mapping[str, float] = {"bench-quick": 300.0}
"""The presets of the quick form, and the seconds that each may take at most."""
STUDY = "study"
LEAST_S = 5.0
"""A part is skipped if less time than this is left, in seconds."""
TRIAL_SHARE, QUICK_TRIAL_SHARE = 0.6, 0.9
"""The share of the study's time after which an arm that is still in its trial is given up."""
LOOK_S = 0.2
"""Seconds between two looks at the parts that run."""

NOT_YET = "not measured yet"

PrintLine = Callable[[str], None]
"""A function that receives a line of progress for people."""


class Bench:
    """All parts in turn, and their figures so far."""

    def __init__(self, folder: Path, *, quick: bool, budget_s: float, say: PrintLine) -> None:
        """Begin now; `folder` gets all files, and `budget_s` seconds are for everything."""
        self._folder, self._quick, self._say = folder.resolve(), quick, say
        self._began_s = time.monotonic()
        self._budget_s = budget_s
        self._children = dict[str, Child]()
        self._skipped = dict[str, str]()
        self._study: dict[str, Any] = {}
        self._written = ""
        folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> dict[str, object]:
        """Measure everything there is time for, and return the figures."""
        try:
            for name, most_s in (QUICK_PARTS if self._quick else PARTS).items():
                limit_s = min(most_s, self._left_s)
                if self._room(name, limit_s):
                    child = self._start(name, limit_s)
                    self._follow([child], time.monotonic() + limit_s, limit_s)
            self._run_study()
        finally:
            for child in self._children.values():
                child.stop("the bench was interrupted")
            self._write()
        return self.figures

    @property
    def _left_s(self) -> float:
        """The seconds that are left of the budget."""
        return self._budget_s - (time.monotonic() - self._began_s)

    def _room(self, name: str, limit_s: float) -> bool:
        """Return whether there is time to begin a part, and note the reason if not."""
        if limit_s >= LEAST_S:
            return True
        self._skipped[name] = (
            f"no time is left for it: {max(0.0, limit_s):.0f} s of the budget of "
            f"{self._budget_s:.0f} s; give --budget more"
        )
        self._say(f"{name}: skipped, {self._skipped[name]}")
        return False

    def _start(self, name: str, limit_s: float) -> Child:
        """Start a part in a process of its own."""
        self._say(f"{name}: at most {limit_s:.0f} s")
        shared = name.startswith(STUDY)
        child = start_part(self._folder, name, limit_s, quick=self._quick, alone=not shared)
        self._children[name] = child
        return child

    def _follow(
        self,
        children: Sequence[Child],
        until_s: float,
        limit_s: float,
        enough: Callable[[Child], bool] = lambda child: False,
    ) -> None:
        """Wait until all parts have ended or have `enough`; stop those that exceed the limit."""
        while [child for child in children if child.look() and not enough(child)]:
            if time.monotonic() > until_s:
                for child in children:
                    if not enough(child):
                        child.stop(f"it was stopped: its {limit_s:.0f} s were over")
            self._write()
            time.sleep(LOOK_S)
        for child in children:
            if child.ended:
                self._say(f"{child.name}: {child.ended}")
        self._write()

    # --- the study --------------------------------------------------------------------------------

    def _run_study(self) -> None:
        """Train the arms at the same time, for as many steps as there is time for."""
        limit_s = self._left_s
        if not self._room(STUDY, limit_s):
            return
        until_s = time.monotonic() + limit_s
        arms = [self._start(f"{STUDY}-{arm}", limit_s) for arm in ARMS]
        trial_s = limit_s * (QUICK_TRIAL_SHARE if self._quick else TRIAL_SHARE)
        self._follow(
            arms, time.monotonic() + trial_s, trial_s, lambda arm: "s_per_step" in arm.figures
        )
        ready = [arm for arm in arms if arm.ended is None]
        if f"{STUDY}-{BASE}" not in [arm.name for arm in ready] or len(ready) < 2:
            for arm in arms:
                arm.stop("there is nothing to compare it with: another arm has failed")
            self._skipped[STUDY] = "; ".join(f"{arm.name}: {arm.ended}" for arm in arms)
            return
        wanted = QUICK_STEPS if self._quick else STEPS
        steps = planned_steps([arm.figures for arm in ready], wanted, self._left_s)
        self._study = {"steps_wanted": wanted, "steps_planned": steps}
        if steps < wanted:
            slowest_s = max(arm.figures["s_per_step"] for arm in ready)
            self._study["why_fewer_steps"] = (
                f"a step of the slowest arm takes {slowest_s:.3f} s here, and "
                f"{self._left_s:.0f} s are left"
            )
        if not steps:
            for arm in ready:
                arm.stop("there was no time for any step after the trial")
            self._skipped[STUDY] = str(self._study["why_fewer_steps"])
            return
        self._say(f"{STUDY}: {steps} steps of {wanted}")
        for arm in ready:
            assert arm.process.stdin is not None
            arm.process.stdin.write(f"{steps}\n".encode())
            arm.process.stdin.close()
        self._follow(ready, until_s, limit_s)

    # --- figures ----------------------------------------------------------------------------------

    @property
    def figures(self) -> dict[str, object]:
        """All figures so far, as JSON has them."""
        presets = [*(QUICK_PARTS if self._quick else PARTS)]
        children = self._children
        found = [child.figures for child in children.values()]
        device = next((each["device"] for each in found if "device" in each), None)
        arms = {arm: children[f"{STUDY}-{arm}"] for arm in ARMS if f"{STUDY}-{arm}" in children}
        arm_figures = {name: arm.figures for name, arm in arms.items()}
        parts = {
            name: self._skipped.get(name)
            or ("under way" if child.ended is None else child.ended or "done")
            for name, child in children.items()
        }
        return {
            "device": device,
            "rows": [self._row(name) for name in presets],
            **gaps(arm_figures),
            "study": {**self._study, "arms": arm_figures},
            "skipped": dict(self._skipped),
            "parts": parts | self._skipped,
            "quick": self._quick,
            "budget_s": self._budget_s,
            "took_s": time.monotonic() - self._began_s,
        }

    def _row(self, name: str) -> dict[str, object]:
        """Return the row of a preset."""
        child = self._children.get(name)
        if child is None:
            return row({"preset": name}, self._skipped.get(name, NOT_YET))
        return row({"preset": name, **child.figures.get("row", {})}, child.ended or NOT_YET)

    def _write(self) -> None:
        """Replace the file if anything but the time has changed."""
        figures = self.figures
        text = json_text({**figures, "took_s": 0.0})
        if text != self._written:
            self._written = text
            temporary = self._folder / f".{FILE}.{os.getpid()}"
            temporary.write_bytes(json_bytes(figures))
            temporary.replace(self._folder / FILE)


def accelerator(
    *,
    quick: bool = False,
    out: Path | None = None,
    budget_s: float | None = None,
    say: PrintLine = lambda line: None,
) -> dict[str, object]:
    """Measure the device of this machine, and return the figures.

    `out` is a folder for logs and for `accelerator.json`, which has the figures so far at any time;
    None uses a temporary folder. `budget_s` is in seconds for everything; None is the default.
    """
    if budget_s is None:
        budget_s = QUICK_BUDGET_S if quick else BUDGET_S
    if out is not None:
        return Bench(out, quick=quick, budget_s=budget_s, say=say).run()
    with tempfile.TemporaryDirectory(prefix="archipelago-accelerator-") as folder:
        return Bench(Path(folder), quick=quick, budget_s=budget_s, say=say).run()


def plain_rows(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows with their main figures only, for a table."""
    names = ("preset", *KEYS, "peak_bytes")
    return [{name: each[name] for name in names} for each in figures["rows"]]


def _log(line: str) -> None:
    """Print a line of progress with the time."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the benchmark from the command line, without Ray, and return the exit code.

    The code is 1 if no step was measured.
    """
    reader = argparse.ArgumentParser(prog="python -m archipelago.lab.bench.accelerator")
    reader.add_argument("--quick", action="store_true", help="tiny sizes, on the CPU")
    reader.add_argument("--out", type=Path, help="folder for accelerator.json and logs")
    reader.add_argument("--budget", type=float, metavar="S", help="seconds for everything")
    reader.add_argument("--json", action="store_true", help="print one JSON object (always so)")
    given = reader.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    figures = accelerator(quick=given.quick, out=given.out, budget_s=given.budget, say=_log)
    print(json_text(figures))
    return 0 if any(each["step_ms"] is not None for each in plain_rows(figures)) else 1


if __name__ == "__main__":
    sys.exit(main())
