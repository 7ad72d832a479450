"""The plans of kills of `bench faults --levels`: one for each level, the same in each mode.

A level is a number of kills per island and minute.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from coordinator.errors import UserMistake

SPACING_S = 10.0
"""The least time between two kills of the same island, in seconds: it should be back by then."""
MOST = 60.0 / SPACING_S
"""The highest level."""


class Kill(NamedTuple):
    """The kill of an island."""

    at_s: float
    """The time of the kill, in seconds from the start of its plan, or of the run."""
    island: str
    """The island that is killed."""


def parse_levels(text: str) -> tuple[float, ...]:
    """Return the levels of a list such as "0,1,2,4".

    Errors: `UserMistake` with every problem at once.
    """
    problems, levels = list[str](), list[float]()
    for word in text.split(","):
        try:
            level = float(word)
        except ValueError:
            problems.append(f"{word.strip()!r} is not a number")
            continue
        if not 0 <= level <= MOST:
            problems.append(
                f"{level:g} is not between 0 and {MOST:g}: the same island is killed at most "
                f"every {SPACING_S:g} s"
            )
        elif level in levels:
            problems.append(f"{level:g} is there twice")
        levels.append(level)
    if problems:
        raise UserMistake(
            f"--levels {text}: {'; '.join(problems)}. Give kills per island and minute, separated "
            "by commas, for example --levels 0,1,2,4"
        )
    return tuple(levels)


def kill_plan(level: float, islands: Sequence[str], lasts_s: float, seed: int) -> tuple[Kill, ...]:
    """Return the kills of `lasts_s` seconds: their number is exact, times and victims are random.

    The kills of an island are at least `SPACING_S` apart. The plan depends on the arguments only,
    so each mode gets the same one.

    Errors: `UserMistake` if the level is above 0 and too low for a single kill.
    """
    dice = random.Random(f"{seed} {level:g}")
    count = round(level * len(islands) * lasts_s / 60.0)
    if level > 0 and count == 0:
        raise UserMistake(
            f"--levels: {level:g} kills per island and minute are none for {len(islands)} islands "
            f"in {lasts_s:g} s; give longer windows (--for) or a higher level"
        )
    each, rest = divmod(count, len(islands))
    more = {*dice.sample(range(len(islands)), rest)}
    kills = list[Kill]()
    for place, island in enumerate(islands):
        number = each + (place in more)
        free_s = max(0.0, lasts_s - SPACING_S * max(0, number - 1))
        times = sorted(dice.uniform(0.0, free_s) for _ in range(number))
        kills += [Kill(at_s + SPACING_S * i, island) for i, at_s in enumerate(times)]
    return tuple(sorted(kills))
