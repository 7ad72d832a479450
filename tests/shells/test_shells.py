"""Tests of every shell for a few seconds with fresh seeds; `FIRST=seed` replays one schedule."""

from __future__ import annotations

import os

import pytest

from tests.shells.explore import explore, fresh_seed, shells

FEW_S = 3.0
LONG_S = 60.0


def first_seed() -> int:
    return int(os.environ.get("FIRST", fresh_seed()))


@pytest.mark.slow
@pytest.mark.parametrize("name", shells())
def test_no_interleaving_breaks_a_shell(name: str) -> None:
    count = 1 if "FIRST" in os.environ else None
    explored = explore(name, shells()[name], first=first_seed(), for_s=FEW_S, count=count)
    print(explored)
    assert explored.finding is None, str(explored.finding)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", shells())
def test_no_interleaving_of_a_longer_search_breaks_a_shell(name: str) -> None:
    explored = explore(name, shells()[name], first=first_seed(), for_s=LONG_S)
    print(explored)
    assert explored.finding is None, str(explored.finding)
