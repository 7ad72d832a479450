"""The figures of `bench faults --levels`, read from the files of a run: its looks and its events.

All modes leave the same two files, `metrics.jsonl` and `events.jsonl`, so each figure means the
same in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from archipelago.lab.bench.fault_levels_plan import Kill
from archipelago.lab.bench.fault_levels_simulated import Recoveries
from cluster.config.values import Mode
from cluster.storage.metrics_log import EVENTS, LOOKS
from coordinator.errors import RunFailed

STALL_STEPS = 3.0
"""Steps that are missing in a stall at least; shorter waits are jitter of steps and looks."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The looks and the events of a run, oldest first."""

    looks: Sequence[dict[str, Any]]
    """The rows of `metrics.jsonl` that have figures."""
    events: Sequence[dict[str, Any]]
    """The rows of `events.jsonl`."""


class Stall(NamedTuple):
    """A span of time in which steps were missing."""

    at_s: float
    """The time of the last step before it, in seconds of the run."""
    lasts_s: float
    """The length of the stall without the step that ends it, in seconds."""


def read_files(run_dir: Path) -> RunFiles:
    """Read the files of a run, which may be running; a torn last line is left out."""
    looks, events = (_rows(run_dir / name) for name in (LOOKS, EVENTS))
    return RunFiles([each for each in looks if each.get("figures")], events)


def _rows(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


def kills_between(files: RunFiles, from_s: float, to_s: float = float("inf")) -> list[Kill]:
    """Return the kills of islands that happened in this span, in seconds of the run."""
    return [
        Kill(each["elapsed_s"], each["island"])
        for each in files.events
        if each["kind"] == "fault" and from_s <= each["elapsed_s"] < to_s
    ]


def plan_began_s(plan: Sequence[Kill], happened: Iterable[Kill]) -> float:
    """Return the time of the run at which a plan began, from its kills that happened.

    A kill never happens early, and a look sees it up to half a second later. So the earliest
    beginning is the best estimate.

    Errors: `RunFailed` if none of them happened.
    """
    begins_s, left = list[float](), list(plan)
    for kill in happened:
        while left and left[0].island != kill.island:
            left.pop(0)  # it was refused: the island was not there
        if left:
            begins_s.append(kill.at_s - left.pop(0).at_s)
    if not begins_s:
        raise RunFailed(f"none of {len(plan)} planned kills happened: no level can be measured")
    return min(begins_s)


def tokens_of(files: RunFiles, from_s: float, to_s: float) -> tuple[float, float]:
    """Return the tokens that got into the model in a span of the run, and those trained in it.

    The first may be negative: data-parallel training goes back to a snapshot.
    """
    at_s = [look["elapsed_s"] for look in files.looks]
    merged = [look["figures"]["tokens_merged"] for look in files.looks]
    trained = [look["tokens_trained"] for look in files.looks]
    (merged_0, merged_1), (trained_0, trained_1) = (
        np.interp([from_s, to_s], at_s, each).tolist() for each in (merged, trained)
    )
    return merged_1 - merged_0, trained_1 - trained_0


def stalls(counts: Iterable[tuple[float, float]], step_s: float) -> list[Stall]:
    """Return the stalls of a counter of steps, which is seen as pairs of time and count.

    A counter that falls has gone back to a snapshot; that is no step.
    """
    found, last_s, last = list[Stall](), None, None
    for at_s, count in counts:
        if last is None or count < last:
            last, last_s = count, at_s if last_s is None else last_s
        elif count > last:
            assert last_s is not None
            missing_s = at_s - last_s - (count - last) * step_s
            if missing_s > STALL_STEPS * step_s:
                found.append(Stall(last_s, missing_s))
            last, last_s = count, at_s
    return found


def recovery_of(
    files: RunFiles, mode: Mode, victim: str, spans: Sequence[tuple[float, float]], step_s: float
) -> Recoveries:
    """Return the mean times of a recovery, from spans of the run with one kill of `victim` each.

    Errors: `RunFailed` if a kill cannot be seen in the steps.
    """
    samples = list[Recoveries]()
    for from_s, to_s in spans:
        looks = [each for each in files.looks if from_s <= each["elapsed_s"] <= to_s]
        if mode is Mode.DECOUPLED:
            counts = [
                (look["elapsed_s"], island["steps"])
                for look in looks
                for island in look["islands"]
                if island["island"] == victim
            ]
        else:
            counts = [(look["elapsed_s"], look["t"]) for look in looks]
        found = sorted(stalls(counts, step_s), key=lambda stall: -stall.lasts_s)
        if not found:
            raise RunFailed(
                f"{mode.value}: {victim} was killed, and no step is missing in {to_s - from_s:.0f} "
                "s after it; its steps may be too slow to see it: try a shorter --step"
            )
        samples.append(_recovery(mode, sorted(found[:2])))
    return Recoveries(
        *(fmean(each) for each in zip(*map(_plain, samples), strict=True))  # field by field
    )


def _recovery(mode: Mode, found: Sequence[Stall]) -> Recoveries:
    """Return the times of one recovery from its longest stalls, in the order of time."""
    if mode is not Mode.ELASTIC:
        return Recoveries(max(stall.lasts_s for stall in found), 0.0, 0.0)
    if len(found) == 1:  # the island was back before the others had gone on
        return Recoveries(found[0].lasts_s, found[0].lasts_s, 0.0)
    ((first, second),) = pairwise(found)
    return Recoveries(second.at_s - first.at_s, first.lasts_s, second.lasts_s)


def _plain(times: Recoveries) -> tuple[float, float, float]:
    return times.back_s, times.shrink_s, times.grow_s


def goodput(tokens: float, full_rate: float, lasts_s: float) -> float:
    """Return tokens over those of all islands at full pace, at least 0.

    `full_rate`: tokens per second of all islands that never stop.
    """
    return max(0.0, tokens / (full_rate * lasts_s))
