"""The answer of the first host when an island of several hosts is asked for a contribution."""

from __future__ import annotations

from typing import NamedTuple

from coordinator.parts import Part


class FirstPart(NamedTuple):
    """The first host's part of a hand-in, and where the other parts are."""

    part: Part
    others: tuple[str, ...]
    """The names of the actors that have the other parts."""
