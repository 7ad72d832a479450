"""`validate` notices a state that the rules could never have reached."""

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
    """a has delivered, b is awaited."""
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


def test_a_contribution_forgotten_or_invented(state: State) -> None:
    with pytest.raises(BrokenInvariant, match="0 tokens in hand"):
        validate(RULE, fragment(state, inbox=()))
    invented = contribution(B)
    with pytest.raises(BrokenInvariant, match="800 tokens in hand"):
        validate(RULE, fragment(state, inbox=(*state.fragments[0].inbox, invented)))


def test_a_contribution_held_twice(state: State) -> None:
    (held,) = state.fragments[0].inbox
    row = replace(state.ledger.rows[0], held=800)
    account = replace(state.ledger.accounts[A], covered=(400,))
    book = replace(state.ledger, trained=1200, rows=(row,))
    book = replace(book, accounts={A: account, B: state.ledger.accounts[B]})
    with pytest.raises(BrokenInvariant, match="holds a contribution twice"):
        validate(RULE, replace(fragment(state, inbox=(held, held)), ledger=book))


def test_a_merge_under_the_quorum(state: State) -> None:
    held: FragmentState = state.fragments[0]
    assert held.round is not None
    closed = replace(held.round, stage=Stage.MERGING, items=held.inbox)
    with pytest.raises(BrokenInvariant, match="merges under the quorum"):
        validate(RULE, fragment(state, inbox=(), round=closed))


def test_waiting_for_the_dead(state: State) -> None:
    with pytest.raises(BrokenInvariant, match=r"waits for .*which are over"):
        validate(RULE, fragment(state, asked={Island("b"): life("b", 9)}))


def test_an_account_of_a_life_that_is_over_or_none_of_one_that_is_not(state: State) -> None:
    without = replace(state, ledger=ledger.close_account(state.ledger, B))
    with pytest.raises(BrokenInvariant, match="accounts of"):
        validate(RULE, without)
    with pytest.raises(BrokenInvariant, match="accounts of"):
        validate(RULE, replace(state, members={Island("a"): state.members[Island("a")]}))
