"""The benchmark `archipelago bench calibrate`: the simulator's figures against those of real runs.

A real run gives the times of this machine: a step, a merge, storing it, and from a kill to the next
step. The simulator gets these, and the times at which other real runs were broken, but nothing else
of those runs. Both leave a tape, and the same figures are read from each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from archipelago.lab.bench.calibrate_simulation import SETTLES_S, MachineTimes, simulate
from archipelago.lab.bench.calibrate_tape import (
    TapeRows,
    WindowFigures,
    all_contributed_s,
    seen,
    stepped_s,
    waits_s,
)
from archipelago.lab.bench.child_run import FOREVER, VICTIM, ChildRun, endless_run
from archipelago.lab.bench.run_story import Story, rows_of
from archipelago.lab.bench.stats import demo
from archipelago.lab.simulation.plan import SimFault, Trouble
from coordinator.protocol import Island

KILLS = 3
"""The number of kills over which the time from a kill to the next step is averaged."""
OTHER, THIRD = Island("local-2"), Island("local-3")


@dataclass(frozen=True, slots=True)
class CalibrationFault:
    """One fault of a plan."""

    at: float
    """The start of the fault, as a share of the window."""
    kind: str
    """The fault for the real run, by its name in `chaos`."""
    trouble: Trouble
    """The fault for the simulated run."""
    island: Island
    """The island that it hits."""
    lasts: float = 0.0
    """The length of a fault that ends by itself, as a share of the window; 0 for others."""


PLANS: dict[str, tuple[CalibrationFault, ...]] = {
    "one is killed": (CalibrationFault(0.2, "kill", Trouble.CRASH, VICTIM),),
    "one is stopped, one is killed": (
        CalibrationFault(0.1, "stop", Trouble.HANG, OTHER, lasts=0.15),
        CalibrationFault(0.5, "kill", Trouble.CRASH, VICTIM),
    ),
    "one is cut off, two are killed": (
        CalibrationFault(0.1, "cut", Trouble.CUT, THIRD, lasts=0.15),
        CalibrationFault(0.4, "kill", Trouble.CRASH, VICTIM),
        CalibrationFault(0.7, "kill", Trouble.CRASH, OTHER),
    ),
}
"""The plans of faults, each of which leaves some island to train.

No plan slows an island, since a paced island idles anyway.
"""


def calibrate(
    *,
    preset: str,
    step_s: float,
    for_s: float,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> dict[str, object]:
    """Run each plan as a real run and as a simulated one, and compare them.

    Islands are paced to `step_s` seconds, so that the remaining ones do not get more of the machine
    while another one is away.
    """
    paced = [*overrides, f"islands.0.step_s={step_s}"]
    config = demo(preset, steps=FOREVER, seed=0, overrides=paced)
    islands = len(config.island_names)
    with TemporaryDirectory(prefix="archipelago-home-") as home:
        times = measure(preset, paced, Path(home), for_s / 2, islands)
        say(f"of this machine: {times}")
        rows: list[dict[str, object]] = []
        for name, attacks in PLANS.items():
            real, faults = _real(preset, paced, Path(home), for_s, attacks, islands, times)
            simulated = simulate(config, times, for_s, faults)
            rows.append(_row(name, real, simulated))
            say(f"{name}: real {real}, simulated {simulated}")
    return {
        **asdict(times),
        "islands": islands,
        "for_s": for_s,
        "goodput_off": max(abs(_number(row, "goodput_off")) for row in rows),
        "merges_off": max(abs(_number(row, "merges_off")) for row in rows),
        "rows": rows,
    }


def _number(row: dict[str, object], key: str) -> float:
    """Return this figure of a row."""
    value = row[key]
    assert isinstance(value, float)
    return value


def _row(name: str, real: WindowFigures, simulated: WindowFigures) -> dict[str, object]:
    """Return both runs' figures: `goodput_off` in percentage points, `merges_off` in per cent."""
    found: dict[str, object] = {"plan": name}
    for key in asdict(real):
        found[f"{key}_real"] = getattr(real, key)
        found[f"{key}_simulated"] = getattr(simulated, key)
    found["goodput_off"] = 100 * (simulated.goodput - real.goodput)
    found["merges_off"] = 100 * (simulated.merges / max(1, real.merges) - 1)
    return found


def measure(
    preset: str, overrides: Sequence[str], home: Path, for_s: float, islands: int
) -> MachineTimes:
    """Measure the times of this machine, in a window without faults and then over some kills."""
    with endless_run(preset, overrides, home) as run:
        run.until_all_contribute()
        time.sleep(SETTLES_S + for_s)
        for _ in range(KILLS):
            run.kill_and_wait(VICTIM)
        run.end()
        rows, story = _tape(run), Story.of(run.run_dir)
    from_s = all_contributed_s(rows, islands) + SETTLES_S
    killed_s, _ = story.faults[0]
    calm_s = min(for_s, killed_s - from_s)
    steps = seen(rows, from_s, from_s + calm_s, islands, 1.0)
    merge_s, store_s = waits_s([row for row in rows if row[0] < killed_s])
    step_s = 1.0 / steps.goodput
    back_s = [stepped_s(rows, life, at_s) - at_s for life, (at_s, _) in enumerate(story.faults, 2)]
    return MachineTimes(step_s, merge_s, store_s, statistics.mean(back_s) - step_s)


def _tape(run: ChildRun) -> TapeRows:
    """Return the events of a run with their times."""
    return [(row.now_s, row.event) for row in rows_of(run.run_dir)]


def _real(
    preset: str,
    overrides: Sequence[str],
    home: Path,
    for_s: float,
    attacks: Iterable[CalibrationFault],
    islands: int,
    times: MachineTimes,
) -> tuple[WindowFigures, list[SimFault]]:
    """Run one window of a real run; return its figures and its faults, in seconds of the window."""
    attacks = list(attacks)
    with endless_run(preset, overrides, home) as run:
        run.until_all_contribute()
        time.sleep(SETTLES_S)
        path = run.run_dir.with_name("attacks.toml")
        path.write_text("".join(_toml(attack, for_s) for attack in attacks))
        run.inject_faults("--plan", str(path))
        after_s = max(attack.at for attack in attacks) * for_s
        time.sleep(for_s - after_s + SETTLES_S)
        run.end()
        rows, story = _tape(run), Story.of(run.run_dir)
    first_s = min(at_s for at_s, _ in story.faults)
    from_s = first_s - min(attack.at for attack in attacks) * for_s
    faults = [
        SimFault(
            at_s - from_s,
            attack.trouble,
            attack.island,
            attack.lasts * for_s or times.back_s,
        )
        for (at_s, _), attack in zip(story.faults, attacks, strict=True)
    ]
    return seen(rows, from_s, from_s + for_s, islands, times.step_s), faults


def _toml(attack: CalibrationFault, for_s: float) -> str:
    """Return the fault as `chaos` reads it."""
    lines = [
        "[[faults]]",
        f"after_s = {attack.at * for_s}",
        f'kind = "{attack.kind}"',
        f'island = "{attack.island}"',
    ]
    if attack.lasts:
        lines.append(f"for_s = {attack.lasts * for_s}")
    return "\n".join(lines) + "\n"
