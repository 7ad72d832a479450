"""A pseudo-random permutation that is never stored: any place of it costs the same to compute.

It is a Feistel network over the smallest power of four that holds all numbers (Luby and Rackoff,
1988; eight rounds), walked along its cycles until a number in range comes up (Black and Rogaway,
"Ciphers with arbitrary finite domains", 2002): at most four steps on average.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""Constants of the finalizer of SplitMix64 (Steele, Lea and Flood, 2014), the round function."""


def permuted(places: NDArray[np.int64], size: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the numbers at these places of a permutation of 0 to `size` - 1.

    The seed determines the permutation.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)  # bits of each half
    keys = np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64).astype(np.uint64)
    found = _scrambled(places.astype(np.uint64), half, keys)
    while (outside := found >= size).any():
        found[outside] = _scrambled(found[outside], half, keys)
    return found.astype(np.int64)


def _scrambled(
    numbers: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Permute the numbers below 4 ** half."""
    width, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = numbers >> width, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return left << width | right


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix numbers modulo 2 ** 64, as unsigned arrays do."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _MIX_1
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _MIX_2
    return numbers ^ (numbers >> np.uint64(31))
