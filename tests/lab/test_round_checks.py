"""The judge of rounds counts each contribution of a dead shard, those on trial included."""

from __future__ import annotations

import pytest

from archipelago.lab.checks.facts import Truth, Violation
from archipelago.lab.checks.history import JudgeMemory
from archipelago.lab.checks.rounds import look
from coordinator.advance import advance
from coordinator.frozen import replace
from coordinator.ledger import open_account
from coordinator.membership import Member, Status
from coordinator.protocol import Fragment, Lease, Progress, ShardLost, Version
from coordinator.state import Round, Stage, State, initial, with_fragment, with_member
from tests.coordinator.given import contribution, life, rule

RULE, EVENT, NOW_S = rule(), ShardLost((Fragment(0),)), 2.0


def merging() -> State:
    """Return a state whose round is merged from island a, with island e on trial beside it."""
    state, start = initial(RULE), Progress(8, 800, Lease(0, 8))
    for island, trial in (("a", 0), ("e", 5)):
        known = life(island)
        state = with_member(
            state, Member(known, "group", Status.LIVE, "", 0, start, 1.0, 1.0, trial=trial)
        )
        state = replace(state, ledger=open_account(state.ledger, known))
    round_ = Round(
        Version(0, 1), 0.5, Stage.MERGING, closed_s=1.0,
        items=(contribution(life("a"), tokens=300),),
        trial=(contribution(life("e"), tokens=500, reference="trial"),),
    )  # fmt: skip
    return with_fragment(state, Fragment(0), replace(state.fragments[0], round=round_))


def test_contribution_on_trial_is_lost_with_its_shard() -> None:
    before = merging()
    after, effects = advance(RULE, before, EVENT, NOW_S)
    assert after.ledger.rows[0].lost == 800
    look(JudgeMemory(RULE, Truth()), before, EVENT, after, effects, NOW_S)


@pytest.mark.parametrize("counted", [300, 500])
def test_forgotten_contribution_of_a_dead_shard_is_noticed(counted: int) -> None:
    before = merging()
    after, effects = advance(RULE, before, EVENT, NOW_S)
    rows = (replace(after.ledger.rows[0], lost=counted),)
    wrong = replace(after, ledger=replace(after.ledger, rows=rows))
    with pytest.raises(Violation, match="contributions of a dead shard are lost"):
        look(JudgeMemory(RULE, Truth()), before, EVENT, wrong, effects, NOW_S)
