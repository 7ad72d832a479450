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
    poison: Poison | None, facts: HandIn, norm: float, rng: random.Random
) -> tuple[HandIn, Parcel]:
    """Return the facts and the payload of a hand-in with this norm, changed by the poison."""
    moments = None
    if facts.id.from_step % 3:  # some have none, as in a run that shares them at times
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
            facts = replace(facts, fingerprint="another")
        case Poison.FUTURE:
            facts = replace(facts, base=Version(facts.base.generation + 9, 0))
        case Poison.COUNTERS:
            facts = rng.choice(_impossible(facts))
        case Poison.LYING:
            facts = lies.hand_in(facts, rng)
    sign = -1 if poison is Poison.FLIPPED else 1
    return facts, Parcel(facts.tokens, norm, sign, poison is Poison.ROTTEN, moments)


def _impossible(facts: HandIn) -> tuple[HandIn, ...]:
    """Return copies of a hand-in with impossible counters."""
    id_, tokens = facts.id, facts.tokens
    return (
        replace(facts, tokens=0),
        replace(facts, tokens=-tokens),
        replace(facts, tokens=facts.progress.tokens + 1),
        replace(facts, id=id_._replace(from_step=-1), since_step=-1),
        replace(facts, since_step=-1),
        replace(facts, since_step=id_.to_step),
        replace(facts, id=id_._replace(from_step=id_.to_step)),
        replace(facts, id=id_._replace(to_step=id_.to_step + 1)),
    )
