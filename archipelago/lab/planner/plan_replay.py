"""A replay of one of a plan's settings: the coordinator's rules beside the chips layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from archipelago.lab.planner import rounds
from archipelago.lab.planner.objective import Simulator, Worth
from archipelago.lab.planner.plan_choice import QUORUM
from islands.learner_state import HEARTBEAT_S

REPLAY_EVENTS, WINDOWS = 5_000, 100
"""The number of events to play, and the number of windows from which one is taken."""
OTHER_TRACES = 1_000_003
"""A seed whose traces were not used for the choice."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A window of one of the best settings, played by both layers, in per cent."""

    learners: int
    every: int
    wire: str
    failures: int
    events: int
    """The events that the rules handled."""
    chips_goodput: float
    rounds_goodput: float
    merged: float
    """The share of trained tokens that is in the global model at the end."""


def replayed(simulator: Simulator, worth: Worth, seed: int) -> Replay:
    """Play the window with the most failures of `WINDOWS` windows, by both layers.

    Steps are played as if they took one second, with all times scaled in proportion. The only
    absolute time in the rules is a learner's heartbeat, which is needed no more than once a step.
    """
    setting = worth.setting
    scale = 1.0 / simulator.step_s
    round_s = setting.every / setting.fragments
    events_per_s = setting.total * (1 / HEARTBEAT_S + 2 / round_s) + 4 / round_s
    lasts_s = math.ceil(REPLAY_EVENTS / events_per_s) / scale  # whole steps
    groups = simulator.traces(setting, OTHER_TRACES, WINDOWS * lasts_s)
    fails_s = np.concatenate([trace.fails_s for group in groups for trace in group])
    counts = np.bincount((fails_s / lasts_s).astype(int), minlength=WINDOWS)
    from_s = float(counts[:WINDOWS].argmax()) * lasts_s
    groups = [[trace.window(from_s, lasts_s) for trace in group] for group in groups]
    weights = [
        group.slice_chips
        for group, learners in zip(simulator.cluster.groups, groups, strict=True)
        for _ in learners
    ]
    recovery = simulator.recovery
    if setting.spares:  # a spare takes over at once
        recovery = replace(recovery, return_s=recovery.shrink_s)
    played = rounds.play(
        [trace.scaled(scale) for group in groups for trace in group],
        recovery.scaled(scale),
        1.0,
        rounds.Sync(setting.every, setting.fragments, worth.moving.overlap, QUORUM),
        f"{seed}/plan/{setting}",  # with the class name: a new name would give other windows
        weights=weights,
    )
    by_chips = simulator.goodput_of(setting, groups, lasts_s)
    return Replay(
        setting.total,
        setting.every,
        setting.wire,
        int(counts[:WINDOWS].max()),
        played.events,
        100 * by_chips,
        100 * played.goodput,
        100 * played.merged,
    )
