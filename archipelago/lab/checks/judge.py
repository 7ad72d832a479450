"""The judge: it checks every invariant after every event, and records the coverage.

The judge has the states and effects of the rules and its own memory of the past. In the simulator
it also has all facts; when it replays a run from its tape it has none of them. If possible
it computes a value in another way than the rules do.
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
    """The judge of one run: call `saw` after every event. Errors: `Violation`."""

    def __init__(self, rule: Rule, truth: Truth) -> None:
        self.memory = JudgeMemory(rule, truth)

    def saw(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], now_s: float
    ) -> None:
        """Check everything that must hold after this event.

        Errors: `Violation` at the first broken invariant.
        """
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
            memory.last[event.fragment] = None  # the merge was undone
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
        """Check liveness: with K live learners every round closes within `patience_s`.

        The simulator calls this from time to time, not after every event.
        """
        rounds.no_round_is_stuck(self.memory, state, now_s, since_s, patience_s)


def _is_merging(state: State, event: Merged | Unsound) -> bool:
    """Return whether the event is about the merge that is under way for its fragment."""
    round_ = state.fragments[event.fragment].round
    stage = Stage.MERGING if round_ is None else round_.stage
    return round_ is not None and round_.version == event.version and stage is Stage.MERGING
