"""What the simulator sends instead of encoded arrays: counts of tokens, with a norm and a sign."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

ALIKE, CHANCE = 0.3, 0.02
"""The cosine of two healthy deltas, and what it is off by."""


class Parcel(NamedTuple):
    """What stands for an encoded delta: the tokens that went into it, its norm and its sign.

    `rotten`: its numbers were finite when it came, and are not when it is merged. `moments`: the
    norm of the first moments beside it, None if there are none.
    """

    tokens: int
    norm: float
    sign: int = 1
    rotten: bool = False
    moments: float | None = None

    @property
    def nbytes(self) -> int:
        return 2 * self.tokens


class SimDifference(NamedTuple):
    """What stands for a publication's payload."""

    tokens: int
    nbytes: int = 1


def aligned_of(
    merging: Sequence[tuple[float, Parcel]], rng: random.Random
) -> tuple[float | None, ...]:
    """Return of each the cosine to an outer momentum that leads where healthy ones point."""
    return tuple(parcel.sign * ALIKE + rng.gauss(0, CHANCE) for _, parcel in merging)


def cosines_of(
    merging: Sequence[tuple[float, Parcel]], trial: Sequence[Parcel], rng: random.Random
) -> tuple[float | None, ...]:
    """Of each to the weighted mean of the others, as if any two healthy ones were ALIKE."""

    def cosine(sign: int, others: Sequence[tuple[float, Parcel]]) -> float | None:
        along = sum(w * parcel.sign for w, parcel in others)
        square = ALIKE * along**2 + (1 - ALIKE) * sum(w * w for w, _ in others)
        chance = rng.gauss(0, CHANCE)
        return sign * ALIKE * along / math.sqrt(square) + chance if square > 0 else None

    rest = [[*merging[:i], *merging[i + 1 :]] for i in range(len(merging))]
    own = [cosine(m.sign, others) for (_, m), others in zip(merging, rest, strict=True)]
    return (*own, *(cosine(parcel.sign, merging) for parcel in trial))
