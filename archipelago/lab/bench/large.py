"""The benchmark `archipelago bench large`: whether costs are independent of a run's length.

The tape part kills a syncer whose tape has the events of up to a million steps of 64 learners.
`syncer_gap_s` is the time from SIGKILL until a new generation first answers with its state. The
time until islands have joined again is in `bench recovery`.

The joins part has many learners join a model of a gigabyte at once, over a thin link, and then
kills its shard (`joins`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ray.exceptions import RayError

from archipelago.lab.bench import procfs, stub_actor
from archipelago.lab.bench.embedded_core import BenchStage, back_on_stage
from archipelago.lab.bench.joins import JoinPlan, joins
from archipelago.lab.bench.long_tape import config_for, left_by_a_run, prepared
from archipelago.lab.bench.scale import layout_of
from archipelago.lab.bench.stats import Median, interval_of, median
from cluster.actors.call_errors import answer
from coordinator.errors import RunFailed, UserMistake

CACHE = Path.home() / ".cache" / "archipelago" / "bench"
"""The folder in which long tapes are kept."""
BACK_S = 600.0
"""Seconds within which a killed syncer must be back."""
POLL_S = 0.02


class LargePart(StrEnum):
    """A part of the benchmark."""

    TAPE = "tape"
    JOINS = "joins"


@dataclass(frozen=True, slots=True)
class TapeLengths:
    """The lengths of the tapes."""

    learners: int
    """The number of learners."""
    played: tuple[int, ...]
    """Lengths in syncer steps, with a row each."""
    times: int
    """The number of repetitions of the longest tape, for one more row."""


LONG = TapeLengths(64, (1_000, 10_000, 100_000), 10)
QUICK = TapeLengths(64, (100,), 10)


def parts_of(only: str | None) -> tuple[LargePart, ...]:
    """Return all parts, or the one that is named.

    Errors: `UserMistake` if there is none of that name.
    """
    if only is None:
        return tuple(LargePart)
    if only not in {*map(str, LargePart)}:
        raise UserMistake(f"--only {only}: the parts are {' and '.join(LargePart)}")
    return (LargePart(only),)


def large(
    *,
    lengths: TapeLengths,
    repeats: int,
    home: Path,
    plan: JoinPlan,
    say: Callable[[str], None],
    parts: Sequence[LargePart] = tuple(LargePart),
) -> dict[str, Any]:
    """Measure the parts, and return their figures; `home` is the folder in which tapes are kept.

    Errors: `RunFailed` if a killed process does not come back, or a learner does not join.
    """
    figures, peaks = dict[str, Any](), dict[str, int]()
    if LargePart.TAPE in parts:
        figures = long_tape(lengths, repeats, home, say)
        peaks = figures["peak_bytes"]
    if LargePart.JOINS in parts:
        joined = joins(plan, say)
        peaks = joined["peak_bytes"] | peaks
        figures = {"joining": plan.learners} | joined | figures
    return figures | {"peak_bytes": peaks}


def long_tape(
    lengths: TapeLengths, repeats: int, home: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure the restart for each length of the tape, with a row each.

    The other figures are those of the longest tape, and the slope from the shortest to the longest.
    """
    folder = prepared(home, lengths.learners, lengths.played, say)
    runs = [(steps, 1) for steps in lengths.played] + [(lengths.played[-1], lengths.times)]
    rows: list[dict[str, Any]] = []
    gaps: list[Median] = []
    for steps, times in runs:
        # on the file system of the tape, since it hard-links the segments
        with TemporaryDirectory(dir=folder, prefix="run-") as temporary:
            run_dir = Path(temporary) / "run"
            left = left_by_a_run(folder, run_dir, lengths.learners, steps, times)
            killed = _killed(lengths.learners, run_dir, repeats)
        gaps.append(median([each.gap_s for each in killed]))
        rows.append(
            {
                "steps": steps * times,
                "tape_events": left[0],
                "tape_bytes": left[1],
                **interval_of("syncer_gap_s", gaps[-1]),
                "syncer_peak_bytes": max(each.peak_bytes for each in killed),
            }
        )
        say(f"{steps * times} steps: {left[0]} events, {gaps[-1].value:.2f} s")
    first, last = rows[0], rows[-1]
    added_events = last["tape_events"] - first["tape_events"]
    return {
        "learners": lengths.learners,
        "tape_events": last["tape_events"],
        "tape_bytes_per_event": last["tape_bytes"] / last["tape_events"],
        **interval_of("syncer_gap_s", gaps[-1]),
        "coverage": min(each.coverage for each in gaps),
        "syncer_gap_s_per_million_events": 1e6 * (gaps[-1].value - gaps[0].value) / added_events,
        "syncer_peak_bytes": last["syncer_peak_bytes"],
        "peak_bytes": {"syncer": last["syncer_peak_bytes"]},
        "rows": rows,
    }


@dataclass(frozen=True, slots=True)
class ComingBack:
    """One restart of the syncer."""

    gap_s: float
    """Seconds from the kill to the first answer."""
    peak_bytes: int
    """Peak memory of the new process by then."""


def _killed(learners: int, run_dir: Path, repeats: int) -> Sequence[ComingBack]:
    """Restart the run in `run_dir`, and kill its syncer `repeats` times."""
    config = config_for(learners)
    with back_on_stage(config, layout_of(config), run_dir) as stage:
        return [_kill(stage) for _ in range(repeats)]


def _kill(stage: BenchStage) -> ComingBack:
    """Kill the syncer, and measure its restart.

    Errors: `RunFailed` if it is not back in time, or not as a new generation.
    """
    old_pid = answer(stub_actor.pid_of(stage.syncer))
    generation = _generation(stage)
    os.kill(old_pid, signal.SIGKILL)
    began_s = time.monotonic()
    while time.monotonic() - began_s < BACK_S:
        try:
            now = _generation(stage)
        except RayError:  # Ray is restarting it
            time.sleep(POLL_S)
            continue
        gap_s = time.monotonic() - began_s
        if now <= generation:
            raise RunFailed(f"the syncer that was killed still runs, as generation {now}")
        return ComingBack(gap_s, procfs.peak_bytes(answer(stub_actor.pid_of(stage.syncer))))
    raise RunFailed(f"the syncer that was killed is not back within {BACK_S:g} s")


def _generation(stage: BenchStage) -> int:
    """Return the generation of the syncer."""
    figures = answer(stage.syncer.status.remote(), BACK_S)["figures"]
    return figures["generation"]
