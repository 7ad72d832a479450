"""A check that both layers agree: windows of one trace, played by each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from archipelago.lab.planner import fit, rounds
from archipelago.lab.planner import published as paper
from archipelago.lab.planner.cluster_model import YEAR_S, Recovery
from archipelago.lab.planner.configurations import Configuration, Lockstep, play
from archipelago.lab.planner.learner_timeline import elastic, merged_share

SYNC = rounds.Sync(every=24, fragments=8, overlap=2, quorum=1)
"""The paper's H, τ and K. With its P = 24, a window of as many events would be a third as long."""
FAST_ROUNDS, FULL_ROUNDS = 160, 1000
MARGIN_S = 3600.0
"""Seconds by which the drawn trace is longer than the window that is cut from it."""


@dataclass(frozen=True, slots=True)
class ComparedWindow:
    """One window, played by both layers; goodput and merged shares are in per cent."""

    configuration: Configuration
    learners: int
    chips: int
    failures: int
    chips_goodput: float
    rounds_goodput: float
    difference: float
    """Goodput of the rounds layer less that of the chips layer, in points."""
    chips_merged: float
    """The share of trained tokens that is in the model at the end, by the chips layer."""
    merged: float
    """The share of trained tokens that is in the model at the end, by the rounds layer."""
    events: int
    merges: int
    rebuilds: int


def windows(
    seed: int, rounds_each: int, recovery: Recovery, *, fetching: float = 1.0
) -> Iterator[ComparedWindow]:
    """Yield one window of `rounds_each` rounds for each cell of table 1 with elastic learners."""
    lasts_s = rounds_each * SYNC.every / SYNC.fragments * fit.STEP_S
    for configuration, learners in paper.TABLE_1:
        if configuration is Configuration.NOT_ELASTIC:
            continue
        for chips in paper.CHIPS:
            yield _window(seed, configuration, learners, chips, lasts_s, recovery, fetching)


def _window(
    seed: int,
    configuration: Configuration,
    learners: int,
    chips: int,
    lasts_s: float,
    recovery: Recovery,
    fetching: float,
) -> ComparedWindow:
    rng = np.random.default_rng([seed, chips, learners])
    failures = int((lasts_s + MARGIN_S) * chips / YEAR_S)
    long = fit.one_trace(
        int(rng.integers(2**31)), chips, failures, recovery, paper.SLICE_CHIPS, YEAR_S
    )
    trace = long.window(rng.uniform(0.0, MARGIN_S / 2), lasts_s)
    unread = Lockstep(SYNC.every, SYNC.fragments, SYNC.overlap)
    by_chips = play(configuration, learners, trace, recovery, fit.STEP_S, unread).goodput
    parts = [trace.of_learner(m, learners) for m in range(learners)]
    timelines = [elastic(part, recovery, fit.STEP_S) for part in parts]
    merged = merged_share(timelines, SYNC.every * fit.STEP_S)
    seeded = f"{seed}/{chips}/{learners}"
    played = rounds.play(parts, recovery, fit.STEP_S, SYNC, seeded, fetching=fetching)
    return ComparedWindow(
        configuration,
        learners,
        chips,
        len(trace.fails_s),
        chips_goodput=100 * by_chips,
        rounds_goodput=100 * played.goodput,
        difference=100 * (played.goodput - by_chips),
        chips_merged=100 * merged,
        merged=100 * played.merged,
        events=played.events,
        merges=played.merges,
        rebuilds=played.rebuilds,
    )
