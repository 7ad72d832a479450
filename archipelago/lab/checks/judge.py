"""All that may never happen, looked for after every event; and what was covered.

The judge knows the rules' states and effects, its own memory of what went before, and of the truth
as much as is known: all of it in the simulator, nothing of a run that is replayed from its tape. It
computes what it can in another way than the rules do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from archipelago.lab.checks import claims, clock, members, rounds
from archipelago.lab.checks import effects as acting
from archipelago.lab.checks import fencing as hearing
from archipelago.lab.checks import merges as merging
from archipelago.lab.checks import termination as ending
from archipelago.lab.checks.facts import Truth, Violation
from archipelago.lab.checks.history import JudgeMemory
from coordinator.errors import BrokenInvariant
from coordinator.protocol import (
    Effect,
    Event,
    Merged,
    Reached,
    Resume,
    ShardLost,
    Unsound,
)
from coordinator.state import Phase, Rule, Stage, State, validate


class InvariantJudge:
    """Told of every event by `saw`; raises `Violation`."""

    def __init__(self, rule: Rule, truth: Truth) -> None:
        self.memory = JudgeMemory(rule, truth)

    def saw(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], now_s: float
    ) -> None:
        """Everything that must hold after every event."""
        memory = self.memory
        memory.coverage.saw(before, event, effects)
        if isinstance(event, Resume):
            memory.forget(after)
        if isinstance(event, Reached):
            rounds.reached(memory, before, event)
        if isinstance(event, ShardLost):
            memory.forget_fragments(before, event.fragments)
        if isinstance(event, Unsound) and _is_merging(before, event):
            memory.void[event.fragment] += 1
            memory.asked[event.fragment] = (math.nan, frozenset())
            memory.last[event.fragment] = None  # that merge never was
            merging.undone(memory, before, event, after, effects)
        if before.phase is Phase.RUNNING and after.phase is not Phase.RUNNING:
            memory.ending_s = now_s
        try:
            validate(memory.rule, after)
        except BrokenInvariant as error:
            raise Violation("validate", str(error)) from error
        clock.look(memory, before, event, after, now_s)
        claims.look(memory, before, event, after, effects, now_s)
        hearing.look(memory, before, event, after, effects, now_s)
        if after.fragments is not before.fragments:
            rounds.look(memory, before, event, after, effects, now_s)
        if after.members is not before.members:
            members.look(memory, before, event, after, now_s)
        if after.leases is not before.leases:
            members.leases(memory, after)
        if effects:
            acting.look(memory, before, event, after, effects, now_s)
        if isinstance(event, Merged) and _is_merging(before, event):
            merging.directions(memory, before, event, after)
        if after.phase is not Phase.RUNNING:
            ending.look(memory, before, event, after, effects, now_s)
        if (after.phase is Phase.FINISHED) != (before.phase is Phase.FINISHED):
            ending.ended(memory, after, effects)

    def no_round_is_stuck(
        self, state: State, now_s: float, since_s: float, patience_s: float
    ) -> None:
        """Liveness, looked at from time to time: with K learners alive every round closes."""
        rounds.no_round_is_stuck(self.memory, state, now_s, since_s, patience_s)


def _is_merging(state: State, event: Merged | Unsound) -> bool:
    round_ = state.fragments[event.fragment].round
    stage = Stage.MERGING if round_ is None else round_.stage
    return round_ is not None and round_.version == event.version and stage is Stage.MERGING
