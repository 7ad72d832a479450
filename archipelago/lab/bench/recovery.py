"""The benchmark `archipelago bench recovery`: the time until a killed process is back.

It runs the real command line in processes of its own, kills processes with `chaos`, and reads the
figures from the files of the run: its tape, its notes and its looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from archipelago.lab.bench.child_run import VICTIM, endless_run, several
from archipelago.lab.bench.run_story import Story
from archipelago.lab.bench.stats import DEMO_ISLANDS, Median, interval_of, median
from cluster.names import SYNCER
from coordinator.protocol import Island

HOSTS = (2, 4)
"""The numbers of hosts of the island of several hosts."""
GANG, SOLO = Island("gang-0"), Island("solo-0")
IDLE_STEP_S = 1.0
"""The least seconds of a step of the islands of `HOSTS`, so that their cores are mostly idle."""


def recovery(
    *, preset: str, repeats: int, overrides: Sequence[str], say: Callable[[str], None]
) -> dict[str, object]:
    """Kill processes with SIGKILL again and again, and measure the time until they are back.

    The victims are, in this order:

    - a learner, and then the syncer, of a run with four islands;
    - a learner of such a run that has a warm spare;
    - the raylet of a node, in a run with a node for each island and for each death;
    - an island of two hosts, and one of four, in turn with an island of one host in the same run,
      on cores that are mostly idle.

    The first start has an empty home, and so no compiled programs; `learner_back_s` has them.
    """
    figures: dict[str, list[float]] = {
        "merge_period_s": [], "learner_gap_s": [], "learner_back_s": [], "syncer_gap_s": [],
        "cold_start_s": [], "learner_back_spare_s": [], "node_back_s": [],
    }  # fmt: skip
    ratios = dict[str, Median]()
    with TemporaryDirectory(prefix="archipelago-home-") as home:
        with endless_run(preset, overrides, Path(home)) as run:
            run.until_all_contribute()
            time.sleep(5.0)  # some merges at the usual period
            for _ in range(repeats):
                run.kill_and_wait(VICTIM)
            for _ in range(repeats):
                run.kill_and_wait(SYNCER)
            run.end()
            story = Story.of(run.run_dir)
        with endless_run(preset, [*overrides, "islands.0.spares=1"], Path(home)) as run:
            run.until_all_contribute()
            for _ in range(repeats):
                run.until(lambda look: look["spares"] == 1)
                run.kill_and_wait(VICTIM)
            run.end()
            spare_story = Story.of(run.run_dir)
        one_a_node = [*overrides, "islands.0.resources.CPU=1.0"]
        with (
            several(DEMO_ISLANDS + repeats) as raylets,
            endless_run(preset, one_a_node, Path(home), raylets) as run,
        ):
            run.until_all_contribute()
            for _ in range(repeats):
                run.kill_and_wait(VICTIM, "node")
            run.end()
            node_story = Story.of(run.run_dir)
        for hosts in HOSTS:
            gang_back_s, solo_back_s = _gang(preset, overrides, Path(home), hosts, repeats)
            figures |= {
                f"hosts{hosts}_back_s": gang_back_s,
                f"hosts{hosts}_beside_back_s": solo_back_s,
            }
            ratios[f"hosts{hosts}_back_of_one"] = between(
                median(gang_back_s), median(solo_back_s), lambda a, b: a / b
            )
    for name, other in (("learner_back_spare_s", spare_story), ("node_back_s", node_story)):
        figures[name] = [other.back_s(VICTIM, at_s) - at_s for at_s, _ in other.faults]
    first_s = story.faults[0][0]
    settled_s = max(arrivals[0][0] for arrivals in story.arrivals.values())
    figures["cold_start_s"] = story.cold_starts_s()
    figures["merge_period_s"] = [
        b - a for a, b in pairwise(story.merges) if a > settled_s and b < first_s
    ]
    for at_s, victim in story.faults:
        if victim == VICTIM:
            back_s = story.back_s(VICTIM, at_s)
            figures["learner_back_s"].append(back_s - at_s)
            figures["learner_gap_s"].append(story.gap_s(at_s, back_s))
        else:
            figures["syncer_gap_s"].append(story.next_merge_s(at_s + 1.0) - at_s)
    shown = {name: median(samples) for name, samples in figures.items()}
    back, cold = shown["learner_back_s"], shown["cold_start_s"]
    gap, period = shown["learner_gap_s"], shown["merge_period_s"]
    shown["learner_back_of_cold"] = between(back, cold, lambda a, b: a / b)
    shown["learner_gap_over_period_s"] = between(gap, period, lambda a, b: a - b)
    shown |= ratios
    for name, middle in shown.items():
        say(f"{name} {middle.value:.2f} ({middle.low:.2f} to {middle.high:.2f})")
    result: dict[str, object] = {"repeats": repeats}
    for name, middle in shown.items():
        result |= interval_of(name, middle)
    return result | {"coverage": min(middle.coverage for middle in shown.values())}


def _gang(
    preset: str, overrides: Sequence[str], home: Path, hosts: int, repeats: int
) -> tuple[list[float], list[float]]:
    """Return the seconds from SIGKILL to the next contribution, for two kinds of islands.

    The first list is for an island of `hosts` hosts, whose first host is killed; the second is for
    an island of one host in the same run.
    """
    each = {"step_s": IDLE_STEP_S, "resources": {"CPU": 0.2}}
    islands = [{"group": "gang", "hosts": hosts, **each}, {"group": "solo", **each}]
    with endless_run(preset, overrides, home, islands=islands) as run:
        run.until_all_contribute(victim=GANG)
        for _ in range(repeats):
            for victim in (GANG, SOLO):
                run.kill_and_wait(victim, victim=victim)
        run.end()
        story = Story.of(run.run_dir)
    gang_back_s, solo_back_s = list[float](), list[float]()
    for at_s, name in story.faults:
        samples = gang_back_s if name == GANG else solo_back_s
        samples.append(story.back_s(Island(name), at_s) - at_s)
    return gang_back_s, solo_back_s


def between(a: Median, b: Median, compared: Callable[[float, float], float]) -> Median:
    """Return a ratio or difference of two medians, with the widest interval that theirs allow."""
    return Median(
        compared(a.value, b.value),
        compared(a.low, b.high),
        compared(a.high, b.low),
        min(a.coverage, b.coverage),
        min(a.samples, b.samples),
    )
