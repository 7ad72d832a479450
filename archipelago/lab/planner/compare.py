"""`archipelago simulate CLUSTER.toml`: configurations side by side on a user's own cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archipelago.lab.planner.cluster_model import TraceOutcome
from archipelago.lab.planner.configurations import (
    Configuration,
    Lockstep,
    mean_and_interval,
    meeting,
    together,
)
from archipelago.lab.planner.learner_timeline import elastic, rigid
from archipelago.lab.planner.objective import LONGEST_S, SHORTEST_S, SimulationEffort, Simulator
from archipelago.lab.planner.settings import Setting, shared
from archipelago.lab.planner.trace import Trace
from cluster.config.machines import ClusterFile

LEARNERS = 8
"""The default number of learners of all groups together, as far as the slices allow it."""
LOCKSTEP = Lockstep(24, 24, 2)
MOST_STEPS = 40_000
"""The longest trace, in steps: learners in lock-step are simulated meeting by meeting."""


@dataclass(frozen=True, slots=True)
class ComparedConfiguration:
    """The results of one configuration, in per cent."""

    configuration: Configuration
    learners: int
    goodput: float
    interval: float
    """Half of the 95 % confidence interval of `goodput` over seeds."""
    uptime: float
    """The share of the time in which a learner advanced; NaN for learners in lock-step."""


def compare(
    cluster: ClusterFile, seed: int, *, seeds: int, failures: int
) -> list[ComparedConfiguration]:
    """Play all configurations on the same traces and return a row for each.

    `uptime` is NaN for the lock-step configurations (diloco and streaming).
    """
    learners = tuple(shared(group, LEARNERS, cluster) for group in cluster.groups)
    setting = Setting(learners, LOCKSTEP.every, "bf16", 0)
    simulator = Simulator(cluster, seed, SimulationEffort(seeds, failures))
    step_s = simulator.step_s
    lasts_s = min(LONGEST_S, max(SHORTEST_S, failures / simulator.failures_per_s()))
    lasts_s = min(lasts_s, MOST_STEPS * step_s)
    found: dict[Configuration, list[TraceOutcome]] = {each: [] for each in Configuration}
    for number in range(seeds):
        groups = simulator.traces(setting, number, lasts_s)
        parts = [trace for group in groups for trace in group]
        joint_trace, recovery = joined(parts), simulator.recovery
        timelines = [elastic(part, recovery, step_s) for part in parts]
        blocking = Lockstep(LOCKSTEP.every, 1, 0)
        for configuration, outcome in (
            (
                Configuration.NOT_ELASTIC,
                together([rigid(joint_trace, recovery.restart_s, step_s)], lasts_s),
            ),
            (Configuration.ELASTIC, together([elastic(joint_trace, recovery, step_s)], lasts_s)),
            (Configuration.DECOUPLED, together(timelines, lasts_s)),
            (Configuration.DILOCO, meeting(timelines, lasts_s, step_s, blocking)),
            (Configuration.STREAMING, meeting(timelines, lasts_s, step_s, LOCKSTEP)),
        ):
            found[configuration].append(outcome)
    single_learner = (Configuration.NOT_ELASTIC, Configuration.ELASTIC)
    rows: list[ComparedConfiguration] = []
    for configuration, outcomes in found.items():
        mean, half = mean_and_interval(np.array([each.goodput for each in outcomes]))
        uptime = float(np.mean([each.uptime for each in outcomes]))
        count = 1 if configuration in single_learner else sum(learners)
        rows.append(
            ComparedConfiguration(configuration, count, 100 * mean, 100 * half, 100 * uptime)
        )
    return rows


def joined(parts: Sequence[Trace]) -> Trace:
    """Return one trace of all slices as those of a single job, each with the same weight."""
    first = np.cumsum([0, *(part.slices for part in parts)])
    fails_s = np.concatenate([part.fails_s for part in parts])
    order = np.argsort(fails_s, kind="stable")

    def all_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays)[order]

    return Trace(
        int(first[-1]),
        parts[0].lasts_s,
        fails_s[order],
        all_of([part.back_s for part in parts]),
        all_of([part.sound_since_s for part in parts]),
        all_of([p.slice_of + int(offset) for p, offset in zip(parts, first[:-1], strict=True)]),
    )
