"""Published figures that nothing was fitted on, each with the assumptions that reproduce it.

If an assumption was chosen because it reproduces the figure, the entry notes it. In that case only
the consequences of the assumption, here the ratios, are a test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archipelago.lab.planner.bandwidth import Exchange, ExchangeMethod, needed_gbit_s
from archipelago.lab.planner.mixed_speeds import Paces, share_computing

NEARLY_ALL = 0.9999
"""The share of the time computing at which the link no longer limits training."""
H, P, TAU, ISLANDS = 24, 24, 2, 8
TWO_HALF_B, FOUR_SEVEN_B, TWELVE_B = 2.5e9, 4.7e9, 12e9
SLOWER, JITTER, STEPS = 0.18, 0.1, 4000
"""Table 5: the slowest learners are 18 % slower, and step times vary by 10 %."""
REGIONS, TIMES_FASTER = 4, 20.0
CLOSE = 0.05
"""The largest relative difference to the published figure that still counts as a fit."""


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One published figure beside ours."""

    figure: str
    unit: str
    """The unit of `paper` and `ours`, or "more than" for a lower bound."""
    paper: float
    ours: float
    fits: bool
    """Whether our figure is within `CLOSE` of the paper's, or above it if that is a bound."""
    assumptions: str
    chosen: str = ""
    """The assumption that was chosen so that the figure comes out; empty if none was."""


def anchors(seed: int) -> list[PublishedFigure]:
    """Return all published figures beside ours."""
    return [*_links(), *_speeds(seed), *_regions()]


def _anchor(
    figure: str, unit: str, paper: float, ours: float, assumptions: str, chosen: str = ""
) -> PublishedFigure:
    """Return a figure, which fits if it is within `CLOSE` of the paper's."""
    return PublishedFigure(
        figure, unit, paper, ours, abs(ours / paper - 1) <= CLOSE, assumptions, chosen
    )


def _exchange(method: ExchangeMethod, wire: str, islands: int) -> Exchange:
    return Exchange(method, islands, H, P, TAU, wire)


def _links() -> list[PublishedFigure]:
    found: list[PublishedFigure] = []
    cases = ((TWO_HALF_B, "bf16", 104.0, 1.7), (FOUR_SEVEN_B, "int4", 198.0, 0.84))
    for parameters, wire, ring, decoupled in cases:
        all_reduce = needed_gbit_s(
            _exchange(ExchangeMethod.DATA_PARALLEL, wire, ISLANDS), parameters, 1.0, NEARLY_ALL
        )
        decoupled_gbit_s = needed_gbit_s(
            _exchange(ExchangeMethod.DECOUPLED, wire, ISLANDS), parameters, 1.0, NEARLY_ALL
        )
        conditions = (
            f"{parameters / 1e9:g}B parameters, {ISLANDS} islands, steps of 1 s; a ring all-reduce "
            f"of bf16 gradients behind the backward pass; one of {P} fragments in {wire} each way "
            "in every step"
        )
        chosen = "the model's size from data-parallel's figure, and the wire among four"
        found += [
            _anchor("data-parallel's link", "Gbit/s", ring, all_reduce, conditions, chosen),
            _anchor("decoupled's link", "Gbit/s", decoupled, decoupled_gbit_s, conditions, chosen),
            _anchor(
                "times less",
                "",
                ring / decoupled,
                all_reduce / decoupled_gbit_s,
                conditions,
                "the wire",
            ),
        ]
    return found


def _speeds(seed: int) -> list[PublishedFigure]:
    slowest = 1.0 / (1.0 - SLOWER)
    paces = Paces((*[1.0] * (ISLANDS - 1), slowest), JITTER)
    rng = np.random.default_rng(seed)
    blocking_share = 100 * share_computing(rng, paces, STEPS, overlap=TAU)
    return [
        _anchor(
            "table 5, K = 8: goodput",
            "%",
            84.0,
            blocking_share,
            f"one of {ISLANDS} learners is {SLOWER:.0%} slower, steps vary by {JITTER:.0%}, and "
            f"no learner is more than {TAU} steps ahead of the last one. Our own rules do not make "
            "learners wait for a quorum: with K = 8 rounds close later, and goodput stays at 100 %",
            "that one learner is the slow one; with speeds in between it is 91 %",
        ),
        _anchor(
            "table 5, K = 1: goodput",
            "%",
            100.0,
            100 * share_computing(rng, paces, STEPS, overlap=None),
            "no learner waits, by construction (docs/explanation/protocol.md)",
        ),
    ]


def _regions() -> list[PublishedFigure]:
    """Return the speedup of 12B parameters over four regions on links of 2 and 5 Gbit/s.

    Each figure also has the step time up to which the speedup exceeds 20. A conventional step,
    whose exchange is not hidden, takes T + c - hidden seconds (T: computing, c: exchange). One of
    ours takes max(T, fragment).
    """
    found: list[PublishedFigure] = []
    for gbit_s in (2.0, 5.0):
        shortest_s, longest_s = steps_of_speedup(gbit_s, TIMES_FASTER)
        best = speedup(gbit_s, shortest_s)
        found.append(
            PublishedFigure(
                f"12B, {REGIONS} regions, {gbit_s:g} Gbit/s: times faster",
                "more than",
                TIMES_FASTER,
                best,
                best > TIMES_FASTER,
                f"bf16, steps of {shortest_s:.1f} s, the shortest behind which the link is hidden; "
                f"it is more than 20 times up to steps of {longest_s:.1f} s. Conventional: a ring "
                "all-reduce of all gradients between the regions, behind the backward pass",
            )
        )
    return found


def speedup(gbit_s: float, step_s: float) -> float:
    """Return decoupled steps per second over data-parallel ones, for 12B over four regions."""
    ring = _exchange(ExchangeMethod.DATA_PARALLEL, "bf16", REGIONS)
    decoupled = _exchange(ExchangeMethod.DECOUPLED, "bf16", REGIONS)
    sends_s = ring.bits(TWELVE_B) / gbit_s / 1e9
    conventional_s = step_s + max(0.0, sends_s - ring.hidden_steps() * step_s)
    fragment_s = decoupled.bits(TWELVE_B) / gbit_s / 1e9 / decoupled.gap
    return conventional_s / max(step_s, fragment_s)


def steps_of_speedup(gbit_s: float, times: float) -> tuple[float, float]:
    """Return the shortest step time that hides a fragment, and the longest with this speedup."""
    ring = _exchange(ExchangeMethod.DATA_PARALLEL, "bf16", REGIONS)
    decoupled = _exchange(ExchangeMethod.DECOUPLED, "bf16", REGIONS)
    shortest_s = decoupled.bits(TWELVE_B) / gbit_s / 1e9 / decoupled.gap
    longest_s = ring.bits(TWELVE_B) / gbit_s / 1e9 / (times - 1.0 + ring.hidden_steps())
    return shortest_s, longest_s
