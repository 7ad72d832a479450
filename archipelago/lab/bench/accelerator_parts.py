"""One part of `archipelago bench accelerator`, in a process of its own.

    python -m archipelago.lab.bench.accelerator_parts PART --into FILE --for SECONDS [--quick]

FILE has the part's figures as JSON, and is replaced as a whole whenever there are new ones. So a
part that runs out of time or memory loses only the measurement that was under way.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.storage.files import json_text

KEPT_FOR_WIRE, KEPT_FOR_HOST = 0.3, 0.1
"""The shares of a preset's time reserved for what follows the device's steps, and the wire."""
EXHAUSTED = ("RESOURCE_EXHAUSTED", "out of memory", "OUT_OF_MEMORY", "Out of memory")
"""Words in the error of a device without memory left."""


class PartFigures:
    """The figures of a part so far, and the file that has them."""

    def __init__(self, path: Path) -> None:
        """Begin without figures; each change replaces the file at `path`."""
        self._path, self.figures = path, dict[str, Any]()

    def tell(self, figures: Mapping[str, object]) -> None:
        """Add figures; nested tables are merged."""
        _merge(self.figures, figures)
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.write_text(json_text(self.figures) + "\n", encoding="utf-8")
        temporary.replace(self._path)


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add the new values to the old ones, table by table."""
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


def measure_preset(name: str, report: PartFigures, limit_s: float) -> None:
    """Measure one preset: its step first, then hand-ins, adoptions and encodings."""
    from archipelago.lab.bench import accelerator_step, accelerator_wire
    from archipelago.lab.bench.accelerator_device import MODELS, compiled, described

    until_s = time.monotonic() + limit_s

    def tell(more: Mapping[str, object]) -> None:
        report.tell({"row": more})

    def left_s(kept: float = 0.0) -> float:
        """Return the seconds that are left, less the share that is reserved for later parts."""
        return until_s - time.monotonic() - kept * limit_s

    report.tell({"device": described(), "row": {"preset": name}})
    windows, measured = MODELS[name].batch_size, compiled(name)
    while True:
        try:
            tell(accelerator_step.measure_alone(measured, windows))
            accelerator_step.measure_hooks(
                measured, windows, "device", tell, lambda: left_s(KEPT_FOR_WIRE)
            )
            break
        except Exception as error:
            if not _exhausted(error) or windows == 1:
                raise
            log(f"{name}: a step of {windows} windows does not fit: {error}"[:300])
            tell({"did_not_fit": {str(windows): str(error)[:300]}})
        gc.collect()  # free the device memory of the failed attempt
        windows //= 2
    accelerator_wire.measure(measured, tell, lambda: left_s(KEPT_FOR_HOST))
    accelerator_step.measure_hooks(measured, windows, "host", tell, left_s)


def _exhausted(error: Exception) -> bool:
    """Return whether the device had no memory left."""
    return any(word in str(error) for word in EXHAUSTED)


def measure_arm(arm: str, report: PartFigures, *, quick: bool, folder: Path) -> None:
    """Train one arm of the study; the number of steps is a line on the standard input."""
    from archipelago.lab.bench import accelerator_study
    from archipelago.lab.bench.accelerator_device import described

    report.tell({"device": described()})
    plan = accelerator_study.QUICK if quick else accelerator_study.FULL
    accelerator_study.train_arm(plan, arm, folder, report.tell, _read_steps)


def _read_steps() -> int:
    """Read the number of steps from the standard input."""
    line = sys.stdin.readline()
    if not line.strip():
        raise SystemExit("the number of steps is missing on standard input: the bench has ended")
    return int(line)


def log(line: str) -> None:
    """Write a line for people to the standard error, since the standard output has JSON."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Measure the part that the command line names, and return the exit code."""
    reader = argparse.ArgumentParser(prog="accelerator_parts")
    reader.add_argument("part")
    reader.add_argument("--into", type=Path, required=True)
    reader.add_argument("--for", dest="for_s", type=float, required=True)
    reader.add_argument("--quick", action="store_true")
    given = reader.parse_args()
    report = PartFigures(given.into)
    if given.part.startswith("study-"):
        arm = given.part.removeprefix("study-")
        measure_arm(arm, report, quick=given.quick, folder=given.into.parent)
    else:
        measure_preset(given.part, report, given.for_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
