"""The benchmark `archipelago bench overhead`: the cost of the system for islands that train anyway.

The same processes train with the syncer and without it, in turn: A B A B.

With the syncer, an island is a learner like any other. It joins, reports, hands in and adopts;
versions are stored and the tape is written, as configured. Without the syncer, the same actor does
plain training: the same compiled step on the same stream, and nothing else. Both wait for the loss
of each step before they begin the next one. That costs time on an accelerator, where a loop could
run ahead, but it costs both sides the same and so is in no figure.

Each of `SETTINGS` is measured. The second one has the defaults, the periodic work of the fleet, and
the evaluator. Wall time and CPU seconds are compared per step. The CPU seconds are those of all
processes, and include Ray's own, which idle along in both cases. The training thread measures its
own overhead by a steady clock: everything that is neither computing a step nor reading data, the
work of the devices for us between two steps included.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from archipelago.lab.bench import procfs
from archipelago.lab.bench.baseline_actor import FOREVER, Counted, SoloActor
from archipelago.lab.bench.embedded_core import START_S, BenchStage, Onlookers, staged
from archipelago.lab.bench.stats import interval_of, median
from cluster.actors.call_errors import answer
from cluster.actors.start import start_island
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.names import seat_of
from coordinator.errors import RunFailed

SETTLE_S = 3.0
"""Seconds after each change before anything is counted."""
WORD_S = 60.0
"""Seconds that an island may take to follow an order."""
AMPLE = 3
"""The steps that hosts agree on before they train alone, as a multiple of a window's steps."""


@dataclass(frozen=True, slots=True)
class OverheadSetting:
    """One configuration that is measured."""

    name: str
    sync: Mapping[str, object]
    """The values of `[sync]` that differ from the defaults."""
    watched: bool
    """Whether the evaluator and the periodic work of the fleet run as well."""


SETTINGS = (
    OverheadSetting(
        "H = 24, int4, no status queries",
        {"every": 24, "fragments": 8, "wire_up": "int4", "wire_down": "int4"},
        watched=False,
    ),
    OverheadSetting("as shipped, fleet and evaluator", {}, watched=True),
)


@dataclass(frozen=True, slots=True)
class OverheadWindow:
    """The figures of one window."""

    steps_per_s: float
    """Steps per second of all islands together."""
    cpu_s_per_step: float
    """CPU seconds of all processes for each step."""
    ours: float
    """The share of the training threads' time that is overhead."""
    merges: int = 0
    """Merges in the window."""
    syncer_s: float = 0.0
    """CPU seconds of the syncer's process."""
    shard_s: float = 0.0
    """CPU seconds of all shard processes."""


def overhead(
    *,
    preset: str,
    islands: int,
    pairs: int,
    for_s: float,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> dict[str, object]:
    """Measure windows of `for_s` seconds with the syncer and without, `pairs` times per setting.

    There is a row for each of `SETTINGS`. The figures beside the rows are those of the first
    setting.
    """
    rows = [_row(setting, preset, islands, pairs, for_s, overrides, say) for setting in SETTINGS]
    return {"islands": islands, "for_s": for_s, **rows[0], "rows": rows}


def _row(
    setting: OverheadSetting,
    preset: str,
    islands: int,
    pairs: int,
    for_s: float,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> dict[str, object]:
    """Measure one setting, and return its row."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from cluster.workers.evaluator import Evaluator  # JAX: for the initial model only

    config = config_of(preset, islands, overrides, setting)
    evaluator = Evaluator(config)
    layout, flats = evaluator.layout, evaluator.initial()
    with_sync, without_sync = list[OverheadWindow](), list[OverheadWindow]()
    with staged(config, layout, flats) as stage:
        make_context = Onlookers(stage).looking if setting.watched else nullcontext
        solos = [
            start_island(config, group, seat_of(island), stage.home, None, SoloActor)
            for group in config.islands
            for island in group.names
        ]
        _all((solo.prepare.remote() for solo in solos), START_S)
        rest_s = WORD_S + 2 * AMPLE * (SETTLE_S + for_s)  # agreed steps are finished first
        for number in range(pairs):
            merges = stage.status()["merges"]
            _all((solo.together.remote() for solo in solos), rest_s)
            _until_merging(stage, islands, merges)
            with make_context():
                with_sync.append(_window(stage, solos, for_s))
            steps = math.ceil(AMPLE * with_sync[-1].steps_per_s / islands * (SETTLE_S + for_s))
            _all(solo.alone.remote(steps) for solo in solos)
            without_sync.append(_window(stage, solos, for_s))
            say(f"{setting.name}, pair {number}: with {with_sync[-1]}, without {without_sync[-1]}")
        _all((solo.rest.remote() for solo in solos), rest_s)
        merges = stage.status()["merges"]
    sync = config.sync
    row: dict[str, object] = {
        "setting": setting.name,
        "every": sync.lasting_every,
        "wires": f"{sync.wire_up}, {sync.wire_down}",
        "merges": merges,
    }
    return row | compared(with_sync, without_sync)


def compared(
    with_us: Sequence[OverheadWindow], without: Sequence[OverheadWindow]
) -> dict[str, object]:
    """Return each figure as a median over the pairs, with its interval.

    The first three are the figures with goals. The cost of a round to syncer and shards is
    the difference to their cost while the islands train alone.

    Errors: `RunFailed` if a window with the syncer saw no merge.
    """
    if not all(window.merges for window in with_us):
        raise RunFailed("no merge in a window: make it longer, with --for")
    pairs = [*zip(with_us, without, strict=True)]
    figures: dict[str, object] = {"samples": len(pairs)}
    for name, samples in (
        ("ratio", [a.steps_per_s / b.steps_per_s for a, b in pairs]),
        ("cpu_ratio", [a.cpu_s_per_step / b.cpu_s_per_step for a, b in pairs]),
        ("thread_fraction", [a.ours for a in with_us]),
        ("steps_per_s", [a.steps_per_s for a in with_us]),
        ("cpu_ms_per_step", [1e3 * a.cpu_s_per_step for a in with_us]),
        ("syncer_ms_per_round", [1e3 * (a.syncer_s - b.syncer_s) / a.merges for a, b in pairs]),
        ("shard_ms_per_round", [1e3 * (a.shard_s - b.shard_s) / a.merges for a, b in pairs]),
    ):
        middle = median(samples)
        figures |= interval_of(name, middle)
        figures["coverage"] = middle.coverage
    return figures


def config_of(
    preset: str, islands: int, overrides: Sequence[str], setting: OverheadSetting
) -> Config:
    """Return the configuration of a setting."""
    tables = {
        "run": {"steps": FOREVER},
        "task": {"preset": preset},
        "sync": {**setting.sync},
        "islands": [{"group": "local", "count": islands, "resources": {"CPU": 1.0}}],
    }
    return parse(tables, origin="bench overhead", overrides=overrides)


def _until_merging(stage: BenchStage, islands: int, merges: int) -> None:
    """Wait until all islands train and there have been more than `merges` merges.

    Errors: `RunFailed` if that takes longer than `START_S`.
    """
    end_s = time.monotonic() + START_S
    while (status := stage.status())["alive"] < islands or status["merges"] <= merges:
        if time.monotonic() > end_s:
            alive, made = status["alive"], status["merges"] - merges
            raise RunFailed(f"{alive} of {islands} islands, {made} merges after {START_S:g} s")
        time.sleep(0.2)


def _window(stage: BenchStage, solos: Sequence[Any], for_s: float) -> OverheadWindow:
    """Measure one window of `for_s` seconds."""
    time.sleep(min(SETTLE_S, for_s / 2))
    before: list[Counted] = _all(solo.counted.remote() for solo in solos)
    merges, (syncer_s, shard_s) = stage.status()["merges"], stage.cpu_s()
    began_s, used_before = time.monotonic(), procfs.family(os.getpid())
    time.sleep(for_s)
    used_s = procfs.used_s(used_before, procfs.family(os.getpid()))
    seconds = time.monotonic() - began_s
    syncer_after_s, shard_after_s = stage.cpu_s()
    merges = stage.status()["merges"] - merges
    after: list[Counted] = _all(solo.counted.remote() for solo in solos)
    window = measured([*zip(before, after, strict=True)], used_s, seconds)
    return replace(
        window,
        merges=merges,
        syncer_s=syncer_after_s - syncer_s,
        shard_s=shard_after_s - shard_s,
    )


def measured(
    islands: Sequence[tuple[Counted, Counted]], used_s: float, seconds: float
) -> OverheadWindow:
    """Return the figures between two looks at each island.

    The looks fall between steps, so that the rates are of whole steps.

    Errors: `RunFailed` if an island made no step.
    """
    rate_per_s = ours_s = thread_s = 0.0
    for before, after in islands:
        took_s = after.thread_s - before.thread_s
        if not took_s > 0:
            raise RunFailed("an island made no step in a window: make it longer, with --for")
        rate_per_s += (after.steps - before.steps) / took_s
        thread_s, ours_s = thread_s + took_s, ours_s + after.ours_s - before.ours_s
    return OverheadWindow(rate_per_s, used_s / (rate_per_s * seconds), ours_s / thread_s)


def _all(calls: Iterable[Any], timeout_s: float = WORD_S) -> list[Any]:
    return [answer(call, timeout_s) for call in list(calls)]
