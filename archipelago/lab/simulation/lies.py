"""What a lying learner of the simulator says: its words with one number that is another one.

Each integer that the protocol's door lets through is as likely as any other. What the door refuses
(a word of another life, a fragment that is not there, more than 2^53) is not said.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from coordinator.protocol import Adopted, HandIn, Progress, Report

SHARE = 0.2
"""Of the words of a lying learner: so many are untrue."""
MOST_BITS = 53
"""A count has at most so many."""
FLOOD_SHARE, FLOOD = 0.2, 60
"""Of its requests for data: so many are made again, at most so many times."""
NOT_SAID = ("life", "fragment", "parts")
"""Parts of a word in which the door finds every lie."""

T = TypeVar("T")
Path = tuple[str, ...]


def report(
    event: Report, adopted: Sequence[Adopted], fragments: int, rng: random.Random
) -> tuple[Report, Sequence[Adopted]]:
    """Return a report, and what is said with it, of which perhaps one number is another one."""
    if rng.random() >= SHARE:
        return event, adopted
    words = [event, *adopted]
    number = rng.randrange(len(words))
    word = words[number]
    if isinstance(word, Adopted) and rng.random() < SHARE:
        words[number] = replace(word, fragment=rng.randrange(fragments))
    else:
        words[number] = _bent(word, rng)
    first, *others = words
    assert isinstance(first, Report)
    return first, [each for each in others if isinstance(each, Adopted)]


def hand_in(said: HandIn, rng: random.Random) -> HandIn:
    """Return the facts of a hand-in, of which perhaps one number is another one."""
    return said if rng.random() >= SHARE else _bent(said, rng)


def progress(said: Progress, rng: random.Random) -> Progress:
    """Return how far a learner that leaves has come, of which perhaps one number is another one."""
    return said if rng.random() >= SHARE else _bent(said, rng)


def floods(rng: random.Random) -> int:
    """Return how often a request for data is made besides once."""
    return rng.randint(1, FLOOD) if rng.random() < FLOOD_SHARE else 0


def _bent(word: T, rng: random.Random) -> T:
    path = rng.choice([*_integers(word)])
    return _with(word, path, rng)


def _integers(value: object, path: Path = ()) -> Iterator[Path]:
    """Yield where the integers of a word are."""
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
    """Return a number with one bit flipped, or one more or less, or many times as large."""
    match rng.randrange(3):
        case 0:
            return number ^ (1 << rng.randrange(MOST_BITS))
        case 1:
            return max(0, number + rng.choice((-1, 1)))
        case _:
            return min(number * rng.choice((2, 3, 10, 1000)), 1 << MOST_BITS)
