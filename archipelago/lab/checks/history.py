"""The judge's memory of a run, and a second copy of the protocol's constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from archipelago.lab.checks.coverage import Coverage
from archipelago.lab.checks.facts import Poison, TokenWindow, Truth
from coordinator.protocol import (
    Contribution,
    ContributionId,
    Effect,
    Fragment,
    Island,
    Life,
    Reference,
    Version,
)
from coordinator.state import Rule, Stage, State

REFUSALS, NORMS, SILENCE_S, SILENCE_STEPS = 3, 8, 10.0, 30
"""Refusals until a quarantine, fewest healthy norms that define a usual one, limits of silence.

The values are copied from docs/explanation/protocol.md, so that the judge notices a change of
the rules.
"""
BARRED_S, LONGEST_BARRED_S = 5.0, 320.0
"""The first and the longest time for which an island is barred, in seconds."""
STRICT_FOR = 64
"""Contributions after a quarantine for norms to which the strict limit applies."""
REMEMBERED, MOST = 64, 0.7
"""Norms that define the usual one, and the share of them that must be healthy to be certain."""
PASSING = (Poison.LOUD, Poison.FLIPPED, Poison.ROTTEN, Poison.LYING)
"""Kinds of poison that no gate can detect with certainty."""
GAMMA, IN_PACE, NEWEST, LEARNT_S = 0.9, 2.0, 0.2, 120.0
"""Constants of the grace window, and the time allowed for a first hand-in.

In order: the share of the slack; the largest ratio of a learner's step time to the median one at
which it keeps pace; the weight of the newest sample in a moving average; and the seconds allowed
for hand-ins while no time to quorum is known.
"""
AGAINST, AGAIN, SIGMAS, CLEAR = 5, 5, 4.0, 0.1
"""Constants of the direction check.

In order: merges in a row that point away until a quarantine; merges in a row that do not until the
island is trusted again; the distance that counts, in standard deviations; and the cosine that
counts where there are fewer fragments than merges in a row.
"""
STALENESS_OF_PACE = 3
"""The least staleness bound, in versions, at which starvation is judged.

With a tighter bound a learner that keeps pace can be late through no fault of its own.
"""
CREDIT_S, CREDIT_STEPS, HURRY = 120.0, 4.0, 2.0
"""Limits on the progress that a learner may claim.

In order: seconds, or steps of its own, that it may claim at once; and the factor by which it may
claim to have been faster than its fastest step.
"""
MOST_SHARE = 4.0
"""The largest weight of a contribution, as a multiple of its share of the steps in a merge."""
ALMOST = 1e-9
"""The tolerance of comparisons between floating-point numbers."""


@dataclass(frozen=True, slots=True)
class MergeRecord:
    """One merge of a fragment."""

    opened_s: float
    """The time at which its round was opened, in seconds of the syncer's clock."""
    closed_s: float
    """The time at which its round was closed, in the same seconds."""
    lives: frozenset[Life]
    """The lives with a contribution in the merge, or on trial beside it."""
    live: frozenset[Life]
    """The lives that were live when the round was closed."""


class JudgeMemory:
    """The judge's memory of one run, with the `rule` and the `truth` that it judges by."""

    def __init__(self, rule: Rule, truth: Truth) -> None:
        self.rule, self.truth = rule, truth
        count = rule.schedule.fragments
        self.coverage = Coverage()
        self.rounds_of = [0] * count
        self.pace_judged = 0
        self.merges: dict[tuple[Fragment, Version], tuple[Contribution, ...]] = {}
        self.step: dict[tuple[Fragment, Version], type[Effect]] = {}
        self.merged: set[ContributionId] = set()
        self.windows: list[set[TokenWindow]] = [set() for _ in range(count)]
        self.freed: set[Reference] = set()
        self.granted = 0
        self.windows_of: dict[Life, int] = {}  # windows in all leases granted to a life
        self.slowest_s: dict[Life, float] = {}  # the longest step that a life has reported
        self.refusals: dict[Life, int] = {}
        self.norms: list[list[tuple[float, bool]]] = [[] for _ in range(count)]  # (norm, healthy)
        self.against: dict[Life, int] = {}  # merges in a row that it pointed away
        self.trial: dict[Island, int] = {}
        self.pace: list[float | None] = [None] * 3  # quorum, publication, delivery
        self.live_since: dict[Life, float] = {}
        self.last: list[MergeRecord | None] = [None] * count
        self.durable: list[Version] = [Version(0, 0)] * count
        self.asked: list[tuple[float, frozenset[Life]]] = [(math.nan, frozenset())] * count
        self.void = [0] * count  # version numbers lost since the last publication
        self.ending_s = math.nan  # when the run began to end
        self.last_rounds = [False] * count  # whether the last round is over

    def forget(self, after: State) -> None:
        """Forget what the syncer did after its last durable promise, since the syncer has died."""
        self.last = [None] * len(self.last)
        self.void = [0] * len(self.void)
        self.live_since, self.against, self.pace = {}, {}, [None] * 3
        for p, norms in enumerate(self.norms):
            last = after.fragments[p].norms.recent[-1:]
            while norms and norms[-1][0] not in [sample.norm for sample in last]:
                norms.pop()
        self.trial = {island: m.trial for island, m in after.members.items() if m.trial}
        self.last_rounds = [False] * len(self.last_rounds)

    def forget_fragments(self, before: State, fragments: Sequence[Fragment]) -> None:
        """Forget the unpublished merges of these fragments, since their shard is dead."""
        for p in fragments:
            if (round_ := before.fragments[p].round) is not None:
                self.void[p] += round_.stage is not Stage.OPEN
                self.last_rounds[p] = False
            self.last[p], self.asked[p] = None, (math.nan, frozenset())


def averaged(known: float | None, sample: float) -> float:
    """Return the moving average after one more sample; `known` is None before the first one."""
    return sample if known is None else (1 - NEWEST) * known + NEWEST * sample
