"""The messages of a lying learner of the simulator: one number is changed.

Every integer that the protocol's validation lets through is equally likely. A lie that validation
would refuse (a message of another life, a missing fragment, more than 2^53) is left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from coordinator.protocol import Adopted, HandIn, Progress, Report

SHARE = 0.2
"""The share of a lying learner's messages that are untrue."""
MOST_BITS = 53
"""The most bits of a count."""
FLOOD_SHARE, FLOOD = 0.2, 60
"""The share of its data requests that are repeated, and the most repetitions."""
NOT_SAID = ("life", "fragment", "parts")
"""Fields of a message in which validation finds every lie."""

T = TypeVar("T")
Path = tuple[str, ...]


def report(
    event: Report, adopted: Sequence[Adopted], fragments: int, rng: random.Random
) -> tuple[Report, Sequence[Adopted]]:
    """Return a report and its adoptions, perhaps with one number changed."""
    if rng.random() >= SHARE:
        return event, adopted
    events = [event, *adopted]
    number = rng.randrange(len(events))
    chosen = events[number]
    if isinstance(chosen, Adopted) and rng.random() < SHARE:
        events[number] = replace(chosen, fragment=rng.randrange(fragments))
    else:
        events[number] = _bent(chosen, rng)
    first, *others = events
    assert isinstance(first, Report)
    return first, [each for each in others if isinstance(each, Adopted)]


def hand_in(facts: HandIn, rng: random.Random) -> HandIn:
    """Return the facts of a hand-in, perhaps with one number changed."""
    return facts if rng.random() >= SHARE else _bent(facts, rng)


def progress(true: Progress, rng: random.Random) -> Progress:
    """Return the progress of a leaving learner, perhaps with one number changed."""
    return true if rng.random() >= SHARE else _bent(true, rng)


def floods(rng: random.Random) -> int:
    """Return how many times a data request is repeated."""
    return rng.randint(1, FLOOD) if rng.random() < FLOOD_SHARE else 0


def _bent(word: T, rng: random.Random) -> T:
    path = rng.choice([*_integers(word)])
    return _with(word, path, rng)


def _integers(value: object, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each integer in a message that may be changed."""
    for name in _names(value):
        part = getattr(value, name)
        if name in NOT_SAID:
            continue
        if type(part) is int:
            yield (*path, name)
        else:
            yield from _integers(part, (*path, name))


def _names(value: object) -> Sequence[str]:
    if is_dataclass(value):
        return [each.name for each in fields(value)]
    return getattr(value, "_fields", ())


def _with(value: Any, path: Path, rng: random.Random) -> Any:
    name, *rest = path
    part = getattr(value, name)
    changed = _with(part, tuple(rest), rng) if rest else _another(part, rng)
    if is_dataclass(value):
        return replace(value, **{name: changed})  # type: ignore[type-var]
    return value._replace(**{name: changed})


def _another(number: int, rng: random.Random) -> int:
    """Return a number with one bit flipped, off by one, or many times as large."""
    match rng.randrange(3):
        case 0:
            return number ^ (1 << rng.randrange(MOST_BITS))
        case 1:
            return max(0, number + rng.choice((-1, 1)))
        case _:
            return min(number * rng.choice((2, 3, 10, 1000)), 1 << MOST_BITS)
