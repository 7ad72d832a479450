"""The benchmark `bench faults --levels`: goodput by level of failure, in three modes of training.

It is the middle of figure 2 of the paper (arXiv:2604.21428), on real Ray. Each mode is one run of
the real command line. Its windows, one for each level, follow each other. All modes get the same
plan of kills, and paced steps. Before the windows some kills measure the times of a recovery, from
which `fault_levels_simulated` predicts the same windows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from archipelago.lab.bench.child_run import FOREVER, VICTIM, ChildRun, endless_run
from archipelago.lab.bench.fault_levels_files import (
    RunFiles,
    goodput,
    kills_between,
    plan_began_s,
    read_files,
    recovery_of,
    tokens_of,
)
from archipelago.lab.bench.fault_levels_plan import Kill, kill_plan
from archipelago.lab.bench.fault_levels_simulated import (
    Recoveries,
    SimulatedWindow,
    simulated,
)
from archipelago.lab.bench.stats import demo
from cluster.config.values import Mode

MODES = (Mode.DECOUPLED, Mode.ELASTIC, Mode.DATA_PARALLEL)
"""The modes that are compared; the last one is run first, because its steps take longest."""
LEAD_S = 10.0
"""Seconds of a plan before its window, so that the window begins in the midst of recoveries."""
SETTLES_STEPS = 5
"""Steps of all islands from when they contribute until kills begin, or a window without kills."""
LOOK_S = 1.0
"""Seconds after the last kill until `events.jsonl` has it; looks come twice a second."""
SNAPSHOT_STEPS = 5
"""Steps between two snapshots of the data-parallel runs."""
WARM_UP_KILLS = 1
"""Kills before those that are measured: the first one compiles the step of a smaller ring."""
PACE_KEPT = 0.9
"""The least goodput without kills, in each mode, at which the machine keeps the pace."""
SETTINGS = (
    f"durability.snapshot_steps={SNAPSHOT_STEPS}",
    "faults.policy.deaths=1000000",
    "faults.policy.exceptions=1000000",
    "faults.policy.first_delay_s=0.1",
    "faults.policy.longest_delay_s=0.1",
)
"""Settings of all modes: no island is given up, and none waits longer than it needs to restart."""


@dataclass(frozen=True, slots=True)
class LevelSettings:
    """The settings of the benchmark."""

    levels: Sequence[float]
    """Kills per island and minute, in the order of the windows."""
    islands: int
    """The number of islands."""
    for_s: float
    """The length of each window, in seconds."""
    step_s: float
    """The paced time of a step, in seconds."""
    seed: int
    """The seed of the plans of kills."""
    kills: int = 2
    """Kills before the windows, which measure the times of a recovery."""
    preset: str = "byte-tiny"
    """The task."""
    modes: Sequence[Mode] = MODES
    """The modes to run."""


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One mode at one level."""

    mode: str
    """The mode of training."""
    level: float
    """Kills per island and minute."""
    steps_between_kills: float | None
    """The mean time between two kills of an island, in steps; None: it is not killed."""
    planned: int
    """Kills in the plan, those in the seconds before the window included."""
    kills: int
    """Kills that happened; one is refused if its island is not there at that moment."""
    goodput: float
    """Tokens that got into the model in the window, over those of all islands at full pace."""
    trained: float
    """Tokens that were trained in the window, over the same; some were lost again."""
    simulated: float
    """The goodput that the simulator predicts from the same kills."""


@dataclass(frozen=True, slots=True)
class _Common:
    """The facts that all windows share."""

    islands: tuple[str, ...]
    """The names of the islands."""
    step_s: float
    """The paced time of a step, in seconds."""
    for_s: float
    """The length of a window, in seconds."""
    full_rate: float
    """Tokens per second of all islands at full pace."""
    every: int
    """Steps between two hand-ins of the same fragment, H."""
    snapshot_steps: int
    """Steps between two snapshots of a data-parallel run."""


def fault_levels(
    settings: LevelSettings, overrides: Sequence[str], say: Callable[[str], None]
) -> dict[str, object]:
    """Run each mode at each level; return the settings, the rows and the recovery times.

    Errors: `UserMistake` before anything is started; `RunFailed` if a run breaks.
    """
    settings_of_all = [
        *SETTINGS,
        *overrides,
        f"islands.0.step_s={settings.step_s}",
        f"islands.0.count={settings.islands}",
    ]
    common = _common(settings, settings_of_all)
    lasts_s = LEAD_S + settings.for_s
    plans = {
        level: kill_plan(level, common.islands, lasts_s, settings.seed) for level in settings.levels
    }
    rows, recoveries = list[LevelRow](), dict[str, object]()
    with TemporaryDirectory(prefix="archipelago-home-") as home:
        for mode in reversed(settings.modes):
            overrides_of_mode = [*settings_of_all, f"run.mode={mode.value}"]
            files, spans, begins_s = _run(
                settings, common, overrides_of_mode, Path(home), plans, say
            )
            found = recovery_of(files, mode, str(VICTIM), spans, common.step_s)
            recoveries[mode.value] = asdict(found)
            for (level, plan), begin_s in zip(plans.items(), begins_s, strict=True):
                row = _row(common, mode, level, len(plan), files, begin_s, found)
                say(
                    f"{row.mode}, {level:g} kills per island and minute: goodput "
                    f"{100 * row.goodput:.0f} %, simulated {100 * row.simulated:.0f} %"
                )
                rows.append(row)
    rows.sort(key=lambda row: settings.modes.index(Mode(row.mode)))
    return {
        "levels": [*settings.levels],
        "islands": settings.islands,
        "for_s": settings.for_s,
        "step_s": settings.step_s,
        "seed": settings.seed,
        "every": common.every,
        "snapshot_steps": common.snapshot_steps,
        "pace_kept": min((row.goodput for row in rows if row.level == 0), default=None),
        "simulated_off": max(100 * abs(row.simulated - row.goodput) for row in rows),
        "recoveries": recoveries,
        "rows": [asdict(row) for row in rows],
    }


def _common(settings: LevelSettings, overrides: Sequence[str]) -> _Common:
    """Return the facts that all windows share, from the configuration of the runs."""
    config = demo(settings.preset, steps=FOREVER, seed=0, overrides=overrides)
    (group,) = config.islands
    return _Common(
        tuple(str(island) for island in config.island_names),
        group.step_s,
        settings.for_s,
        len(config.island_names) * group.batch_size * config.data.window / group.step_s,
        config.sync.lasting_every,
        config.durability.snapshot_steps,
    )


def _run(
    settings: LevelSettings,
    common: _Common,
    overrides: Sequence[str],
    home: Path,
    plans: Mapping[float, Sequence[Kill]],
    say: Callable[[str], None],
) -> tuple[RunFiles, list[tuple[float, float]], list[float]]:
    """Run one mode; return its files, the spans of the first kills, and when each plan began.

    Times are in seconds of the run.
    """
    spans, begins_s = list[tuple[float, float]](), list[float]()
    with endless_run(settings.preset, overrides, home) as run:
        now_s = _settled_s(run, common)
        for _ in range(WARM_UP_KILLS + settings.kills):
            from_s = now_s
            run.kill_and_wait(VICTIM)
            now_s = _settled_s(run, common)
            spans.append((from_s, now_s))
        for plan in plans.values():
            begin_s = _settled_s(run, common)
            if plan:
                run.kill_by([(kill.at_s, kill.island) for kill in plan])
                time.sleep(LOOK_S)
                happened = kills_between(read_files(run.run_dir), begin_s)
                begin_s = plan_began_s(plan, happened)
            begins_s.append(begin_s)
            end_s = begin_s + LEAD_S + settings.for_s
            time.sleep(max(0.0, end_s - _now_s(run)))  # `until` waits for some minutes at most
            run.until(lambda look, end_s=end_s: look["elapsed_s"] >= end_s)
            if not plan:
                _check_pace(common, read_files(run.run_dir), begin_s + LEAD_S, say)
        run.end()
        return read_files(run.run_dir), spans[WARM_UP_KILLS:], begins_s


def _check_pace(
    common: _Common, files: RunFiles, begin_s: float, say: Callable[[str], None]
) -> None:
    """Report a machine that is too slow for the pace, after the first window without kills."""
    merged, _ = tokens_of(files, begin_s, begin_s + common.for_s)
    if (kept := goodput(merged, common.full_rate, common.for_s)) < PACE_KEPT:
        say(
            f"this machine does not keep the pace: {100 * kept:.0f} % of it without kills, and "
            f"{100 * PACE_KEPT:g} % are needed. The modes cannot be compared: stop this command, "
            "and give a longer --step or fewer --islands, or end other programs"
        )


def _now_s(run: ChildRun) -> float:
    """Return the time of the newest look, in seconds of the run."""
    look = run.look
    assert look is not None
    return look["elapsed_s"]


def _settled_s(run: ChildRun, common: _Common) -> float:
    """Wait until all islands contribute and step; return the time of the run in seconds.

    A ring that has formed again compiles before its first step.
    """
    look = run.until_all_contribute()
    tokens = look["tokens_trained"] + SETTLES_STEPS * common.step_s * common.full_rate
    look = run.until(lambda look: look["tokens_trained"] >= tokens)
    return look["elapsed_s"]


def _row(
    common: _Common,
    mode: Mode,
    level: float,
    planned: int,
    files: RunFiles,
    begin_s: float,
    recoveries: Recoveries,
) -> LevelRow:
    """Return the figures of the window whose plan began at `begin_s` of the run."""
    lasts_s = LEAD_S + common.for_s
    kills = [
        Kill(kill.at_s - begin_s, kill.island)
        for kill in kills_between(files, begin_s, begin_s + lasts_s)
        if level > 0
    ]
    merged, trained = tokens_of(files, begin_s + LEAD_S, begin_s + lasts_s)
    window = SimulatedWindow(
        kills, common.islands, LEAD_S, lasts_s, common.step_s, common.every, common.snapshot_steps
    )
    return LevelRow(
        mode=mode.value,
        level=level,
        steps_between_kills=60.0 / level / common.step_s if level else None,
        planned=planned,
        kills=len(kills),
        goodput=goodput(merged, common.full_rate, common.for_s),
        trained=goodput(trained, common.full_rate, common.for_s),
        simulated=simulated(mode, window, recoveries),
    )
