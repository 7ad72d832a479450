"""The rules' own `replace` does what `dataclasses.replace` does, but faster."""

from __future__ import annotations

import dataclasses

import pytest

from coordinator.frozen import replace
from coordinator.state import initial
from tests.coordinator.given import contribution, rule


def test_replace_matches_dataclasses_replace() -> None:
    state, handed = initial(rule()), contribution()
    assert replace(state, t=3, why="x") == dataclasses.replace(state, t=3, why="x")
    assert replace(handed, tokens=3) == dataclasses.replace(handed, tokens=3)
    assert replace(handed, norm=2.0).tokens == handed.tokens, "fields of the class above as well"
    assert replace(state) == state


def test_replace_refuses_an_unknown_field() -> None:
    with pytest.raises(TypeError, match="a State has no tt"):
        replace(initial(rule()), tt=3)
