"""`archipelago bench calibrate`: does the simulator say of this machine what real runs do?

A real run gives the times of this machine: a step, a merge, storing it, and from a kill to the next
step. The simulator gets these and the moments at which other real runs were broken, and nothing
else of them. Both leave a tape, and the same figures are read off each.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from archipelago.lab.bench.child_run import FOREVER, VICTIM, ChildRun, Story, going, rows_of
from archipelago.lab.bench.stats import demo
from archipelago.lab.checks.facts import Truth
from archipelago.lab.checks.judge import InvariantJudge
from archipelago.lab.simulation.event_loop import running
from archipelago.lab.simulation.faults import FaultInjector
from archipelago.lab.simulation.network import SimNetwork
from archipelago.lab.simulation.plan import LAYOUT, SimFault, SimPlan, Trait, Trouble
from archipelago.lab.simulation.ports import SimPorts
from archipelago.lab.simulation.site import Site
from archipelago.lab.simulation.syncer import SyncerSlot
from archipelago.lab.simulation.world import quiet
from cluster.config.rule import rule_for
from cluster.config.schema import Config
from coordinator.protocol import (
    Anchor,
    Arrived,
    Event,
    Fragment,
    Incarnation,
    Island,
    Life,
    Merged,
    Report,
    Stored,
)

SETTLES_S = 3.0
"""After everybody has contributed, until a window begins."""
LATENCY_S = 0.003
"""Of a message, one way: `bench scale` has a report answered within some milliseconds."""
JITTER = 0.05
"""Of a paced step: the islands idle until it is over."""
ENOUGH_EVENTS = 10**6
KILLS = 3
"""Of which the mean is taken: from a kill to the next step."""
OTHER, THIRD = Island("local-2"), Island("local-3")


@dataclass(frozen=True, slots=True)
class CalibrationFault:
    """What is done to whom: `kind` for the real run, `trouble` for the simulated one.

    `at`: after so much of the window; `lasts`: for so much of it, where it ends by itself.
    """

    at: float
    kind: str
    trouble: Trouble
    island: Island
    lasts: float = 0.0


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
"""Plans that leave somebody to train. None is slowed: an island that is paced idles anyway."""


@dataclass(frozen=True, slots=True)
class MachineTimes:
    """Of this machine, in seconds: a step, a merge and storing it, and from a kill to a step."""

    step_s: float
    merge_s: float
    store_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """What a window of a tape shows. `goodput`: steps, by the step time without faults, over the
    islands' time; `participants`: contributions that arrived, for each merge."""

    goodput: float
    merges: int
    participants: float
    gap_s: float
    longest_gap_s: float


Rows = Sequence[tuple[float, Event]]


def seen(rows: Rows, from_s: float, to_s: float, islands: int, step_s: float) -> WindowFigures:
    """Read the figures off a tape's rows, in seconds of its own clock."""
    before, after = steps_by(rows, from_s), steps_by(rows, to_s)
    steps = sum(count - before.get(life, 0) for life, count in after.items())
    inside = [(at_s, event) for at_s, event in rows if from_s < at_s <= to_s]
    merged_s = [at_s for at_s, event in inside if isinstance(event, Merged)]
    arrived = sum(isinstance(event, Arrived) for _, event in inside)
    gaps_s = [b - a for a, b in pairwise(merged_s)] or [math.nan]
    return WindowFigures(
        goodput=steps * step_s / (islands * (to_s - from_s)),
        merges=len(merged_s),
        participants=arrived / max(1, len(merged_s)),
        gap_s=statistics.median(gaps_s),
        longest_gap_s=max(gaps_s),
    )


def steps_by(rows: Rows, by_s: float) -> dict[Life, int]:
    """Steps that each life has reported until then."""
    found: dict[Life, int] = {}
    for at_s, event in rows:
        if at_s > by_s:
            break
        if isinstance(event, Report):
            found[event.life] = max(found.get(event.life, 0), event.progress.steps)
    return found


def all_contributed_s(rows: Rows, islands: int) -> float:
    """When the last island's first contribution arrived."""
    first: dict[Island, float] = {}
    for at_s, event in rows:
        if isinstance(event, Arrived):
            first.setdefault(event.contribution.id.life.island, at_s)
        if len(first) == islands:
            return at_s
    raise AssertionError("an island never contributed, and the run waited for all")


def waits_s(rows: Rows) -> tuple[float, float]:
    """Medians: from the last contribution of a round to `Merged`, and from that to `Stored`."""
    arrived, merged = dict[Fragment, float](), dict[Fragment, float]()
    merging, storing = list[float](), list[float]()
    for at_s, event in rows:
        match event:
            case Arrived(contribution):
                arrived[contribution.id.fragment] = at_s
            case Merged(p):
                merging.append(at_s - arrived.get(p, at_s))
                merged[p] = at_s
            case Stored(p) if p in merged:
                storing.append(at_s - merged.pop(p))
            case _:
                pass
    return statistics.median(merging or [0.0]), statistics.median(storing or [0.0])


def calibrate(
    *,
    preset: str,
    step_s: float,
    for_s: float,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> dict[str, object]:
    """Three plans, each as a real run and as a simulated one, beside each other.

    Islands are paced to `step_s`, so that who is left has no more of the machine than before.
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
    value = row[key]
    assert isinstance(value, float)
    return value


def _row(name: str, real: WindowFigures, simulated: WindowFigures) -> dict[str, object]:
    """`goodput_off` in points, `merges_off` in per cent of the real ones."""
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
    """A window without faults, then some kills."""
    with going(preset, overrides, home) as run:
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


def stepped_s(rows: Rows, life: int, after_s: float) -> float:
    """When the victim reported its first step in its `life`-th life."""
    return next(
        at_s
        for at_s, event in rows
        if at_s > after_s
        and isinstance(event, Report)
        and event.life.island == VICTIM
        and event.progress.steps > 0
        and event.life.incarnation in lives_of(rows)[life - 1 :]
    )


def lives_of(rows: Rows) -> list[Incarnation]:
    """The victim's, in order."""
    lives = {
        e.life.incarnation for _, e in rows if isinstance(e, Report) and e.life.island == VICTIM
    }
    return sorted(lives)


def _tape(run: ChildRun) -> Rows:
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
    """A window of a real run, and what was done in it: seconds from its beginning."""
    attacks = list(attacks)
    with going(preset, overrides, home) as run:
        run.until_all_contribute()
        time.sleep(SETTLES_S)
        path = run.run_dir.with_name("attacks.toml")
        path.write_text("".join(_toml(attack, for_s) for attack in attacks))
        run.break_it("--plan", str(path))
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
    lines = [
        "[[faults]]",
        f"after_s = {attack.at * for_s}",
        f'kind = "{attack.kind}"',
        f'island = "{attack.island}"',
    ]
    if attack.lasts:
        lines.append(f"for_s = {attack.lasts * for_s}")
    return "\n".join(lines) + "\n"


def simulate(
    config: Config, times: MachineTimes, for_s: float, faults: Sequence[SimFault]
) -> WindowFigures:
    """The same window in virtual time, with the real rules; faults as `_real` found them."""
    site = Site(_plan(config, times))
    network = SimNetwork(site)
    judge = InvariantJudge(site.plan.rule, Truth(site.made_of.get, lambda life, from_s, to_s: True))
    seat = SyncerSlot(site, SimPorts(site, network), judge)
    injector = FaultInjector(site, network, seat)
    islands, loop = len(site.machines), site.loop
    from_s = SETTLES_S + 2 * config.sync.lasting_every * times.step_s
    for machine in site.machines.values():
        loop.at(machine.trait.joins_s, network.start, machine)
    for fault in faults:
        struck = fault._replace(at_s=from_s + fault.at_s)
        loop.at(struck.at_s, injector.strike, struck)
    with running(loop), quiet():
        try:
            loop.run(from_s + for_s, lambda: site.syncer is None or site.syncer.failure is not None)
            if site.syncer is not None and site.syncer.failure is not None:
                raise site.syncer.failure
        finally:
            if site.syncer is not None:
                site.syncer.close()
            site.shards.close()
            loop.finish()
    return seen(seat.tape, from_s, from_s + for_s, islands, times.step_s)


def _plan(config: Config, times: MachineTimes) -> SimPlan:
    rule = rule_for(config, LAYOUT)
    traits = [
        Trait(
            island,
            joins_s=times.step_s * number / len(config.island_names),
            step_s=times.step_s,
            jitter=JITTER,
            tokens=group.batch_size * config.data.window,
            windows=group.batch_size,
            latency_s=LATENCY_S,
            group=group.group,
        )
        for group in config.islands
        for number, island in enumerate(group.names)
    ]
    return SimPlan(
        "calibrate",
        rule,
        tuple(traits),
        carry=config.sync.adopt == "carry",
        faults=(),
        healed_s=math.inf,
        stop_s=math.inf,
        merge_s=times.merge_s,
        store_s=times.store_s,
        store_every=config.durability.counted,
        anchor=Anchor(config.sync.anchor),
        lock_step=None,
        most_events=ENOUGH_EVENTS,
        unruly=False,
    )
