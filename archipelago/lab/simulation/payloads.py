"""The stand-ins for encoded arrays: counts of tokens, with a norm and a sign."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

ALIKE, CHANCE = 0.3, 0.02
"""The cosine of two healthy deltas, and its standard deviation."""


class Parcel(NamedTuple):
    """The stand-in for an encoded delta."""

    tokens: int
    """The tokens that went into it."""
    norm: float
    sign: int = 1
    """1, or -1 if it points against healthy deltas."""
    rotten: bool = False
    """Whether its numbers were finite when it arrived, and are not when it is merged."""
    moments: float | None = None
    """The norm of the first moments beside it; None if there are none."""

    @property
    def nbytes(self) -> int:
        """The bytes of the delta, 2 per token."""
        return 2 * self.tokens


class SimDifference(NamedTuple):
    """The stand-in for a publication's payload."""

    tokens: int
    nbytes: int = 1


def aligned_of(
    merging: Sequence[tuple[float, Parcel]], rng: random.Random
) -> tuple[float | None, ...]:
    """Return each parcel's cosine to an outer momentum that points where healthy ones do."""
    return tuple(parcel.sign * ALIKE + rng.gauss(0, CHANCE) for _, parcel in merging)


def cosines_of(
    merging: Sequence[tuple[float, Parcel]], trial: Sequence[Parcel], rng: random.Random
) -> tuple[float | None, ...]:
    """Return each parcel's cosine to the weighted mean of the others, then those of the trial.

    Any two healthy parcels have the cosine `ALIKE`.
    """

    def cosine(sign: int, others: Sequence[tuple[float, Parcel]]) -> float | None:
        sign_sum = sum(w * parcel.sign for w, parcel in others)
        square = ALIKE * sign_sum**2 + (1 - ALIKE) * sum(w * w for w, _ in others)
        noise = rng.gauss(0, CHANCE)
        return sign * ALIKE * sign_sum / math.sqrt(square) + noise if square > 0 else None

    rest = [[*merging[:i], *merging[i + 1 :]] for i in range(len(merging))]
    merged_cosines = [cosine(m.sign, others) for (_, m), others in zip(merging, rest, strict=True)]
    return (*merged_cosines, *(cosine(parcel.sign, merging) for parcel in trial))
