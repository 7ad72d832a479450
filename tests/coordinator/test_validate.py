"""`validate` notices a state that the rules can never reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator import ledger
from coordinator.advance import advance
from coordinator.errors import BrokenInvariant
from coordinator.protocol import Arrived, Fragment, Island, Join, Progress, Report
from coordinator.protocol import Lease as Piece
from coordinator.state import FragmentState, Stage, State, initial, validate, with_fragment
from tests.coordinator.given import LAYOUT, contribution, life, rule

RULE = rule(quorum=2)
A, B = life("a", 1), life("b", 2)
F0 = Fragment(0)


@pytest.fixture
def state() -> State:
    """Return a state in which a has delivered and b has not."""
    state = initial(RULE)
    for event in (
        Join(Island("a"), "group", LAYOUT),
        Join(Island("b"), "group", LAYOUT),
        Report(A, Progress(4, 400, Piece(0, 4)), 1.0),
        Report(B, Progress(4, 400, Piece(2, 4)), 1.0),
        Arrived(contribution(A)),
    ):
        state, _ = advance(RULE, state, event, 0.0)
    validate(RULE, state)
    return state


def fragment(state: State, **changes: object) -> State:
    return with_fragment(state, F0, replace(state.fragments[0], **changes))


def test_detects_forgotten_and_invented_contributions(state: State) -> None:
    with pytest.raises(BrokenInvariant, match="0 tokens in hand"):
        validate(RULE, fragment(state, inbox=()))
    invented = contribution(B)
    with pytest.raises(BrokenInvariant, match="800 tokens in hand"):
        validate(RULE, fragment(state, inbox=(*state.fragments[0].inbox, invented)))


def test_detects_contribution_held_twice(state: State) -> None:
    (held,) = state.fragments[0].inbox
    row = replace(state.ledger.rows[0], held=800)
    account = replace(state.ledger.accounts[A], covered=(400,))
    book = replace(state.ledger, trained=1200, rows=(row,))
    book = replace(book, accounts={A: account, B: state.ledger.accounts[B]})
    with pytest.raises(BrokenInvariant, match="holds a contribution twice"):
        validate(RULE, replace(fragment(state, inbox=(held, held)), ledger=book))


def test_detects_merge_below_the_quorum(state: State) -> None:
    held: FragmentState = state.fragments[0]
    assert held.round is not None
    closed = replace(held.round, stage=Stage.MERGING, items=held.inbox)
    with pytest.raises(BrokenInvariant, match="merges under the quorum"):
        validate(RULE, fragment(state, inbox=(), round=closed))


def test_detects_waiting_for_lives_that_are_over(state: State) -> None:
    with pytest.raises(BrokenInvariant, match=r"waits for .*which are over"):
        validate(RULE, fragment(state, asked={Island("b"): life("b", 9)}))


def test_detects_accounts_that_do_not_match_the_lives(state: State) -> None:
    without = replace(state, ledger=ledger.close_account(state.ledger, B))
    with pytest.raises(BrokenInvariant, match="accounts of"):
        validate(RULE, without)
    with pytest.raises(BrokenInvariant, match="accounts of"):
        validate(RULE, replace(state, members={Island("a"): state.members[Island("a")]}))
