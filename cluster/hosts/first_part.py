"""The answer of the first host of several when its island is asked for a contribution."""

from __future__ import annotations

from typing import NamedTuple

from coordinator.parts import Part


class FirstPart(NamedTuple):
    """The first host's part of a hand-in, and the names of the actors that have the other parts."""

    part: Part
    others: tuple[str, ...]
