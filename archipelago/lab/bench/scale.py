"""The benchmark `archipelago bench scale`: the cost and latency of one syncer, by learners.

One real syncer and one real shard run on Ray, with many stub learners (`stub_learner`) in each
process. The rate of reports is raised in steps until answers are late, or fewer reports are made
than were asked for. The row has the highest rate that was sustained. On a small machine the
learners exhaust it first, so the row also has the CPU seconds of the syncer's process: per report
with no rounds under way, and per round the cost that rounds add to that. The same reports go to an
actor that does nothing first: that is the limit which Ray's calls set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from archipelago.lab.bench import procfs
from archipelago.lab.bench.embedded_core import BenchStage, staged
from archipelago.lab.bench.empty_actor import empty_figures
from archipelago.lab.bench.load_window import LoadWindow, climbed
from archipelago.lab.bench.stub_actor import CrewActor, CrewFigures, start_crew
from archipelago.lab.bench.stub_material import Material, StubPace
from cluster.actors.call_errors import answer
from cluster.config.load import parse
from cluster.config.rule import schedule_of
from cluster.config.schema import Config
from coordinator.errors import RunFailed
from coordinator.fragments import Layout, Leaf, cut
from coordinator.protocol import Island
from islands.own_wire import built_in

CREW = 16
"""Stub learners in each process."""
EVERY, FRAGMENTS = 24, 8
ROWS, COLUMNS = 256, 256
"""The shape of each fragment.

In bf16 it is larger than 100 KiB; Ray would send anything smaller along with the message, instead
of through the object store.
"""
SEED = 0
SETTLE_S = 2.0
"""Seconds after each change of pace before anything is counted."""
REST_S = 5.0
"""Seconds without steps, to measure reports alone; too short for the silence to be noticed."""
LAST_S = 60.0
"""Seconds within which the last rounds must close."""
FOREVER = 10**9
"""A number of steps that is never reached."""
LADDER = [100.0 * 1.25**rung for rung in range(20)]
"""The rates to try in turn, in reports per second of all learners together."""
QUICK = LADDER[:2]
"""The rates of the quick form."""


def scale(
    *,
    learners: Sequence[int],
    for_s: float,
    rates: Sequence[float],
    late_ms: float,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure each number of learners, and return a row for each.

    `rates` are in reports per second, rising; each is tried for `for_s` seconds, and fails if the
    99th percentile of the reports' latencies is not below `late_ms` milliseconds.

    Errors: `RunFailed` if a round that was opened did not close.
    """
    rows = [_row(count, for_s, rates, late_ms, overrides, say) for count in learners]
    return {"learners": list(learners), "late_ms": late_ms, "rows": rows}


def config_of(learners: int, overrides: Sequence[str]) -> Config:
    """Return the configuration for this number of learners."""
    tables = {
        "run": {"steps": FOREVER},
        "task": {"preset": "byte-tiny"},  # never built: the learners are stubs
        "sync": {"every": EVERY, "fragments": FRAGMENTS},
        "islands": [{"group": "crew", "count": learners, "resources": {"CPU": 0.0}}],
    }
    return parse(tables, origin="bench scale", overrides=overrides)


def layout_of(config: Config) -> Layout:
    """Return a layout with one tensor in each fragment."""
    leaves = [Leaf(f"block-{p}", (ROWS, COLUMNS)) for p in range(config.sync.fragments)]
    return cut(leaves, config.sync.fragments)


def material_of(config: Config, layout: Layout) -> Material:
    """Return the shared parts of the learners, with random deltas."""
    rng = np.random.default_rng(SEED)
    batch = config.islands[0].batch_size
    return Material(
        layout=layout,
        schedule=schedule_of(config),
        wire=built_in(config.sync.wire_up),
        deltas=tuple(
            rng.standard_normal(size, np.float32) * np.float32(1e-3) for size in layout.sizes
        ),
        windows=batch,
        tokens=batch * config.data.window,
        lease_windows=config.data.lease_windows,
    )


def names_of(learners: int) -> dict[Island, list[Island]]:
    """Return the islands of each process."""
    crews: dict[Island, list[Island]] = {}
    for number in range(learners):
        crew = Island(f"crew-{number // CREW}")
        crews.setdefault(crew, []).append(Island(f"{crew}.{number % CREW}"))
    return crews


def _row(
    learners: int,
    for_s: float,
    rates: Sequence[float],
    late_ms: float,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Find the highest sustained rate for this number of learners, and return its row."""
    config = config_of(learners, overrides)
    layout = layout_of(config)
    flats = [np.zeros(size, np.float32) for size in layout.sizes]
    with staged(config, layout, flats) as stage:
        empty = empty_figures([*names_of(learners).values()], for_s, rates, late_ms, say)
        crews = boarded(stage, learners, rates[0])

        def look(rate: float) -> LoadWindow:
            window = _window(stage, crews, StubPace(learners / rate), rate, for_s, late_ms)
            say(f"{learners} learners: {window}")
            return window

        held = climbed(rates, look)
        resting = StubPace(learners / held.asked_per_s, resting=True)
        rest_window = _window(stage, crews, resting, held.asked_per_s, min(for_s, REST_S), late_ms)
        memory_bytes = procfs.rss_bytes(stage.syncer_pid)
        ends = ended(stage, crews, StubPace(learners / held.asked_per_s))
    shown = figures(learners, held, rest_window) | empty
    return shown | {"syncer_rss_bytes": memory_bytes} | ends


def figures(learners: int, held: LoadWindow, alone: LoadWindow) -> dict[str, Any]:
    """Return the figures of the best window, and of a window with reports only."""
    per_report_s = alone.syncer_cpu_s / max(1, len(alone.latencies_s))
    rounds_s = held.syncer_cpu_s - per_report_s * len(held.latencies_s)
    return {
        "learners": learners,
        "held": held.held,
        "reports_per_s": held.reports_per_s,
        "rounds_per_s": held.rounds / held.seconds,
        "report_p50_ms": held.percentile_ms(50),
        "report_p99_ms": held.percentile_ms(99),
        "syncer_cpu_fraction": held.syncer_cpu_s / held.seconds,
        "syncer_cpu_us_per_report": 1e6 * per_report_s,
        "syncer_cpu_ms_per_round": 1e3 * rounds_s / max(1, held.rounds),
        "shard_cpu_fraction": held.shard_cpu_s / held.seconds,
        "learners_cpu_fraction": held.crew_cpu_s / held.seconds,
    }


def boarded(
    stage: BenchStage, learners: int, rate: float, kind: type[CrewActor] = CrewActor
) -> list[Any]:
    """Start the processes one after another, and return them when all learners step.

    Errors: `RunFailed` if some do not step within `LAST_S`.
    """
    material = material_of(stage.config, stage.layout)
    crews: list[Any] = []
    for name, islands in names_of(learners).items():
        crew = start_crew(stage.config, name, stage.home, kind)
        answer(crew.board.remote(islands, material, StubPace(learners / rate)))
        crews.append(crew)
    end_s = time.monotonic() + LAST_S
    while stage.status()["alive"] < learners:
        _all(crew.take.remote() for crew in crews)
        if time.monotonic() > end_s:
            raise RunFailed(f"of {learners} light learners {stage.status()['alive']} step")
        time.sleep(0.2)
    return crews


def _window(
    stage: BenchStage,
    crews: Sequence[Any],
    pace: StubPace,
    rate: float,
    for_s: float,
    late_ms: float,
) -> LoadWindow:
    """Measure one window of `for_s` seconds at this pace."""
    _all(crew.pace.remote(pace) for crew in crews)
    time.sleep(min(SETTLE_S, for_s / 2))
    before = stage.status()["merges"]
    _all(crew.take.remote() for crew in crews)
    began_s = time.monotonic()
    syncer_s, shard_s = stage.cpu_s()
    time.sleep(for_s)
    seconds = time.monotonic() - began_s
    syncer_s, shard_s = (
        after - before for after, before in zip(stage.cpu_s(), (syncer_s, shard_s), strict=True)
    )
    taken: list[CrewFigures] = _all(crew.take.remote() for crew in crews)
    return LoadWindow(
        seconds,
        rate,
        sum(each.steps for each in taken),
        [s for each in taken for s in each.latencies_s],
        sum(each.cpu_s for each in taken),
        syncer_s,
        shard_s,
        stage.status()["merges"] - before,
        late_ms,
    )


def ended(stage: BenchStage, crews: Sequence[Any], pace: StubPace) -> dict[str, Any]:
    """Stop the run, and wait until every round has closed, the last one of each fragment too.

    Errors: `RunFailed` if one does not close within `LAST_S`.
    """
    _all(crew.pace.remote(pace) for crew in crews)
    answer(stage.syncer.stop.remote("bench scale"))
    end_s = time.monotonic() + LAST_S
    while (status := stage.status())["phase"] != "finished":
        if time.monotonic() > end_s:
            open_rounds = [f"{each['fragment']}: {each['round']}" for each in status["fragments"]]
            raise RunFailed(f"rounds did not close within {LAST_S:g} s: {'; '.join(open_rounds)}")
        time.sleep(0.2)
    _all(crew.part.remote() for crew in crews)
    summary = answer(stage.syncer.close.remote())
    return {
        "rounds_closed": summary["merges"],
        "mean_participants": summary["mean_participants"],
        "rejected_contributions": sum(status["refusals"].values()),  # before the learners left
    }


def _all(calls: Iterator[Any]) -> list[Any]:
    return [answer(call) for call in list(calls)]
