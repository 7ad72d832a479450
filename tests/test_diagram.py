"""The tables and diagrams of the protocol page show the moves that tests/diagram.py observes."""

from __future__ import annotations

import pytest

from tests.diagram import (
    LEARNER,
    PAGE,
    ROUND,
    SCHEDULES,
    Machine,
    Move,
    drawn,
    read,
    rewritten,
    seen,
)
from tests.state_moves import MACHINES

FEW = 20


def test_observed_moves_are_in_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for machine, moves in seen(FEW).items():
        assert moves <= read(machine, page), machine.name


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_state_tables_match_the_rules() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rewritten(page, seen(SCHEDULES)) == page


@pytest.mark.parametrize("machine", [LEARNER, ROUND, *MACHINES], ids=lambda machine: machine.name)
def test_diagram_matches_its_table(machine: Machine) -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin, end = machine.fence
    assert page.partition(begin)[2].partition(end)[0].strip() == drawn(machine, read(machine, page))


def test_missing_move_is_detected() -> None:
    page = PAGE.read_text(encoding="utf-8")
    moves = read(LEARNER, page)
    assert Move("live", "Lost", "lost") in moves
    fewer = rewritten(page, {LEARNER: moves - {Move("live", "Lost", "lost")}})
    assert Move("live", "Lost", "lost") not in read(LEARNER, fewer)
    assert rewritten(fewer, {LEARNER: moves}) == page
