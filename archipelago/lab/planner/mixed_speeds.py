"""Learners of different speeds with varying step times: goodput if they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Paces:
    """The step times of learners."""

    step_s: tuple[float, ...]
    """The usual step time of each learner, in seconds."""
    jitter: float
    """Each step takes the usual time times 1 ± `jitter`, uniformly drawn as in the simulator."""


def share_computing(
    rng: np.random.Generator, paces: Paces, steps: int, *, overlap: int | None
) -> float:
    """Return the share of the learners' time in steps, if none runs `overlap` steps ahead.

    `overlap` counts the steps that a learner may begin before all the others have ended the step
    before them. With None no learner ever waits, and the share is 1.
    """
    if overlap is None:
        return 1.0
    learners = len(paces.step_s)
    takes_s = np.array(paces.step_s) * rng.uniform(
        1.0 - paces.jitter, 1.0 + paces.jitter, (steps, learners)
    )
    ended_s = np.zeros(learners)
    all_ended_s = [0.0]
    for took_s in takes_s:
        ended_s = np.maximum(ended_s, all_ended_s[max(0, len(all_ended_s) - 1 - overlap)]) + took_s
        all_ended_s.append(float(ended_s.max()))
    return float(takes_s.sum()) / (learners * all_ended_s[-1])
