"""What the judge remembers of a run, and the constants of docs/protocol.md, said again."""

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
"""As docs/protocol.md has them, said again so that a change of the rules is noticed."""
BARRED_S, LONGEST_BARRED_S = 5.0, 320.0
REMEMBERED, MOST = 64, 0.7
"""Norms that count for what is usual, and the share of healthy ones that decide it surely."""
PASSING = (Poison.LOUD, Poison.FLIPPED, Poison.ROTTEN, Poison.LYING)
"""What is poisoned in a way that no gate can know for sure."""
GAMMA, IN_PACE, NEWEST, LEARNT_S = 0.9, 2.0, 0.2, 120.0
"""Of the grace window: share of the slack, who keeps pace, weight of the newest sample."""
AGAINST, AGAIN, SIGMAS = 5, 5, 4.0
"""Merges in a row that point away until a quarantine, and others until one is trusted again; how
far away counts, in deviations."""
STALENESS_OF_PACE = 3
"""With a staler bound a learner that keeps pace can be late by no fault of its own."""
CREDIT_S, CREDIT_STEPS, HURRY = 120.0, 4.0, 2.0
"""What a learner may claim at once, in seconds or in steps of its own; and by how many times faster
than its fastest step it may claim to have been."""
MOST_SHARE = 4.0
"""Of the steps of a merge: no contribution has more than so many times its share of them."""
ALMOST = 1e-9


@dataclass(frozen=True, slots=True)
class MergeRecord:
    """One merge: when its round was opened and closed, who was in it, and who was live then."""

    opened_s: float
    closed_s: float
    lives: frozenset[Life]
    live: frozenset[Life]


class JudgeMemory:
    """What went before, of one run; `rule` and `truth` are what it is judged by."""

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
        self.windows_of: dict[Life, int] = {}  # in all leases that a life was granted
        self.slowest_s: dict[Life, float] = {}  # the longest step that a life has reported
        self.refusals: dict[Life, int] = {}
        self.norms: list[list[tuple[float, bool]]] = [[] for _ in range(count)]  # healthy?
        self.against: dict[Life, int] = {}  # merges in a row in which it pointed away
        self.trial: dict[Island, int] = {}
        self.pace: list[float | None] = [None] * 3  # to the quorum; closing to public; the way down
        self.live_since: dict[Life, float] = {}
        self.last: list[MergeRecord | None] = [None] * count
        self.durable: list[Version] = [Version(0, 0)] * count
        self.asked: list[tuple[float, frozenset[Life]]] = [(math.nan, frozenset())] * count
        self.void = [0] * count  # versions that have died with their shard since the last one
        self.ending_s = math.nan  # since when the run ends
        self.last_rounds = [False] * count  # is its last round over?

    def forget(self, after: State) -> None:
        """The syncer had died; what it did since its last promise did not happen."""
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
        """Their shard is dead, and with it what was merged and is not public."""
        for p in fragments:
            if (round_ := before.fragments[p].round) is not None:
                self.void[p] += round_.stage is not Stage.OPEN
                self.last_rounds[p] = False
            self.last[p], self.asked[p] = None, (math.nan, frozenset())


def averaged(known: float | None, sample: float) -> float:
    return sample if known is None else (1 - NEWEST) * known + NEWEST * sample
