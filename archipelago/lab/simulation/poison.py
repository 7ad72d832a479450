"""The hand-ins of a poisoned learner of the simulator."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from archipelago.lab.checks.facts import Poison
from archipelago.lab.simulation import lies
from archipelago.lab.simulation.payloads import Parcel
from coordinator.protocol import HandIn, Version

MOMENTS = 0.3
"""The stand-in for the norm of first moments, which does not grow with the steps."""
LOUDER = 1000.0
"""The factor by which the deltas of a `LOUD` learner are too large."""


def spoiled(
    poison: Poison | None, said: HandIn, norm: float, rng: random.Random
) -> tuple[HandIn, Parcel]:
    """Return the facts and the payload of a hand-in with this norm, changed by the poison."""
    moments = None
    if said.id.from_step % 3:  # some have none, as in a run that shares them at times
        moments = MOMENTS * rng.uniform(0.8, 1.25)
    match poison:
        case None | Poison.FLIPPED | Poison.ROTTEN:
            pass
        case Poison.NAN:
            bad = rng.choice((math.nan, math.inf))
            norm, moments = rng.choice(((bad, moments), (norm, bad)))
        case Poison.LOUD:
            norm *= LOUDER
        case Poison.LAYOUT:
            said = replace(said, fingerprint="another")
        case Poison.FUTURE:
            said = replace(said, base=Version(said.base.generation + 9, 0))
        case Poison.COUNTERS:
            said = rng.choice(_impossible(said))
        case Poison.LYING:
            said = lies.hand_in(said, rng)
    sign = -1 if poison is Poison.FLIPPED else 1
    return said, Parcel(said.tokens, norm, sign, poison is Poison.ROTTEN, moments)


def _impossible(said: HandIn) -> tuple[HandIn, ...]:
    """Return copies of a hand-in with impossible counters."""
    id_, tokens = said.id, said.tokens
    return (
        replace(said, tokens=0),
        replace(said, tokens=-tokens),
        replace(said, tokens=said.progress.tokens + 1),
        replace(said, id=id_._replace(from_step=-1), since_step=-1),
        replace(said, since_step=-1),
        replace(said, since_step=id_.to_step),
        replace(said, id=id_._replace(from_step=id_.to_step)),
        replace(said, id=id_._replace(to_step=id_.to_step + 1)),
    )
