"""The benchmark `archipelago bench faults`: the throughput left when processes keep being killed.

It runs the real command line in processes of its own, kills processes with `chaos`, and reads the
figures from the files of the run: its tape and its looks.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from archipelago.lab.bench.child_run import endless_run
from archipelago.lab.bench.run_story import Story, rows_of
from archipelago.lab.bench.stats import interval_of, median
from cluster.launch.chaos import ANY
from cluster.names import SHARD, SYNCER
from cluster.storage.playback import TapeRow
from cluster.syncer.island_measures import advancing_since
from coordinator.protocol import (
    Arrived,
    Fragment,
    Island,
    Life,
    Merged,
    Report,
    Resume,
    ShardLost,
    Stop,
    Stored,
)

RAW_SHARE = 0.25
"""The length of each unpaced window, as a share of `for_s`."""
PACED_SHARE = 0.5
"""The paced rate of steps, as a share of the unpaced rate of all islands together."""
PLANS = {"islands": (ANY,), "islands, syncer, shard": (SYNCER, ANY, SHARD, ANY)}
"""The victims of each plan, in turn."""


class LostMerges(NamedTuple):
    """The numbers of merges that a death has undone."""

    published: int
    """Versions that had been published, and are gone from the model."""
    unpublished: int
    """Versions that were merged, and died before they could be published."""


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """The figures of one window of a run, which begins when all islands have contributed."""

    merged_per_s: float
    """Merged tokens per second."""
    steps_per_s: float
    """Inner steps per second of all islands together."""
    seconds: float
    """The length of the window."""
    summary: dict[str, Any]
    """The summary of the whole run."""
    hits: int
    """The number of kills of islands."""
    lost: LostMerges
    """The merges that the kills undid."""
    advancing: float
    """The mean share of the islands that advanced."""


def faults(
    *,
    preset: str,
    islands: int,
    kill_every_s: float,
    for_s: float,
    pairs: int,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> dict[str, object]:
    """Compare the merged tokens per second with regular kills and without.

    The first windows are unpaced and take a quarter of the time. The others are paced to half of
    the rate of steps that was reached without kills. So the machine has capacity left for a
    restart, and the remaining islands do not step faster while another one is away. `paced_share`
    is the paced rate of merged tokens per second over the unpaced one. Each of the `pairs` has one
    window of `for_s` seconds without kills, and one for each of `PLANS`.
    """
    settings = [*overrides, f"islands.0.count={islands}"]
    only_islands, *_ = PLANS.values()
    with TemporaryDirectory(prefix="archipelago-home-") as home:

        def look(
            overrides: Sequence[str], for_s: float, victims: Sequence[str] = ()
        ) -> FaultWindow:
            plan = plan_of(victims, kill_every_s, for_s)
            window = _window(preset, overrides, Path(home), for_s, plan)
            names = ", ".join(victims) or "no process"
            say(f"{names} killed: {window.merged_per_s:.0f} tokens/s merged")
            return window

        raw_s = max(RAW_SHARE * for_s, 2 * kill_every_s)
        raw = [look(settings, raw_s), look(settings, raw_s, only_islands)]
        step_s = islands / (PACED_SHARE * raw[0].steps_per_s)
        paced = [*settings, f"islands.0.step_s={step_s:.3f}"]
        without, broken = list[FaultWindow](), {name: list[FaultWindow]() for name in PLANS}
        for _ in range(pairs):
            without.append(look(paced, for_s))
            for name, victims in PLANS.items():
                broken[name].append(look(paced, for_s, victims))
    rows = [{"plan": name, **compared(islands, broken[name], without)} for name in PLANS]
    calm = statistics.fmean(window.merged_per_s for window in without)
    return {
        "islands": islands,
        "kill_every_s": kill_every_s,
        "for_s": for_s,
        "step_s": step_s,
        "paced_share": calm / raw[0].merged_per_s,
        "raw_retained": raw[1].merged_per_s / raw[0].merged_per_s,
        **rows[0],
        "lost_merges": sum(window.lost.published for each in broken.values() for window in each),
        "rows": rows,
    }


def plan_of(victims: Sequence[str], every_s: float, for_s: float) -> list[tuple[float, str]]:
    """Return the time and the victim of each kill, in seconds of the window.

    Kills come every `every_s` seconds; the last is early enough for the victim to be seen coming
    back.
    """
    times = [every_s * number for number in range(1, int(for_s / every_s))]
    return list(zip(times, cycle(victims), strict=False))


def compared(
    islands: int, broken: Sequence[FaultWindow], without: Sequence[FaultWindow]
) -> dict[str, object]:
    """Compare windows with kills to windows without, pair by pair.

    - `retained`: the share of merged tokens per second that the plan leaves.
    - `possible`: the share of island-seconds in which an island was not on its way back.
    - `retained_of_possible`: the ratio of these two, from which the time of the recoveries is
      removed.
    - `not_back`: killed islands that had not contributed again at the end of the window. Their time
      away is not subtracted from `possible`.
    - `uptime`: the share of time in which some island advances.
    - `islands_advancing`: the mean share of islands that advance.
    """
    retained = [a.merged_per_s / b.merged_per_s for a, b in zip(broken, without, strict=True)]
    possible = [1 - sum(each.summary["recovery_s"]) / (islands * each.seconds) for each in broken]
    deltas = [
        a.summary["heldout_loss"] - b.summary["heldout_loss"]
        for a, b in zip(broken, without, strict=True)
    ]
    figures: dict[str, object] = {"samples": len(broken)}
    for name, samples in (
        ("retained", retained),
        ("possible", possible),
        ("retained_of_possible", [a / b for a, b in zip(retained, possible, strict=True)]),
        ("uptime", [each.summary["uptime"] for each in broken]),
        ("islands_advancing", [each.advancing for each in broken]),
        ("mean_participants", [each.summary["mean_participants"] for each in broken]),
        ("heldout_loss_delta", deltas),
    ):
        middle = median(samples)
        figures |= interval_of(name, middle)
        figures["coverage"] = middle.coverage
    back_s = [s for each in broken for s in each.summary["recovery_s"]]
    return figures | {
        "lost_merges": sum(each.lost.published for each in broken),
        "unpublished_merges_lost": sum(each.lost.unpublished for each in broken),
        "faults": sum(each.summary["faults"] for each in broken),
        "not_back": sum(each.hits for each in broken) - len(back_s),
        "recovery_s": statistics.median(back_s) if back_s else None,
    }


def _window(
    preset: str,
    overrides: Sequence[str],
    home: Path,
    for_s: float,
    plan: Sequence[tuple[float, str]],
) -> FaultWindow:
    """Run one window with this plan of kills, and return its figures."""
    with endless_run(preset, overrides, home) as run:
        first = run.until_all_contribute()
        began_s = time.monotonic()
        if plan:
            run.kill_by(plan)
        time.sleep(max(0.0, began_s + for_s - time.monotonic()))
        last = run.look
        assert last is not None
        summary, _ = run.end()
        rows, story = rows_of(run.run_dir), Story.of(run.run_dir)
    seconds = last["elapsed_s"] - first["elapsed_s"]
    merged = last["figures"]["tokens_merged"] - first["figures"]["tokens_merged"]
    stepped = sum(each["steps"] for each in last["islands"]) - sum(
        each["steps"] for each in first["islands"]
    )
    return FaultWindow(
        merged_per_s=merged / seconds,
        steps_per_s=stepped / seconds,
        seconds=seconds,
        summary=summary,
        hits=sum(victim in story.arrivals for _, victim in story.faults),
        lost=lost_of(rows),
        advancing=advancing(rows),
    )


def lost_of(rows: Iterable[TapeRow]) -> LostMerges:
    """Count the merges that were undone by a death, from the tape of a run.

    A version that is merged and not stored dies with its shard, or with the syncer. A shard that
    comes back with less than was published has lost that too.
    """
    published: dict[Fragment, int] = {}
    merged = dict[Fragment, int]()
    gone = unpublished = 0
    for row in rows:
        match row.event:
            case Merged(p, version):
                merged[p] = version.number
            case Stored(p, version) if merged.get(p) == version.number:
                published[p] = merged.pop(p)
            case ShardLost(fragments):
                unpublished += sum(merged.pop(p, None) is not None for p in fragments)
            case Resume(_, versions):
                unpublished += len(merged)
                merged.clear()
                for p, version in enumerate(versions):
                    gone += max(0, published.get(Fragment(p), 0) - version.number)
                    published[Fragment(p)] = version.number
            case _:
                pass
    return LostMerges(gone, unpublished)


def advancing(rows: Sequence[TapeRow]) -> float:
    """Return the mean share of a run's islands that advance.

    The time counts from when all have contributed until the run is stopped. An island advances by
    the definition of `uptime`.
    """
    first: dict[Island, float] = {}
    for row in rows:
        if isinstance(row.event, Arrived):
            first.setdefault(row.event.contribution.id.life.island, row.now_s)
    from_s = max(first.values())
    until_s = next((row.now_s for row in rows if isinstance(row.event, Stop)), rows[-1].now_s)
    up_s = sum(
        max(0.0, min(stop_s, until_s) - max(start_s, from_s)) for start_s, stop_s in _spans(rows)
    )
    return up_s / (len(first) * (until_s - from_s))


def _spans(rows: Iterable[TapeRow]) -> Iterator[tuple[float, float]]:
    """Yield the spans of time in which some island advanced, one for each report."""
    last_reports: dict[Life, tuple[int, float]] = {}
    for row in rows:
        if isinstance(report := row.event, Report):
            steps, before_s = last_reports.get(report.life, (0, math.nan))
            if (new_steps := report.progress.steps - steps) > 0:
                last_reports[report.life] = report.progress.steps, row.now_s
                yield advancing_since(report, new_steps, before_s, row.now_s), row.now_s
