"""The random key of each training step, for losses that draw: dropout, noise, sampling.

A key is folded from four numbers: the run's seed, the island, the incarnation of its life, and the
step within that life. So it differs between islands, lives and steps, and can be computed again
from the log of the run. All hosts of an island have the same key at the same step.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from coordinator.protocol import Island

WORDS = 4
"""The number of words in a draw."""


class Draws(NamedTuple):
    """The part of a key that is constant during a life."""

    seed: int
    """The seed of the run."""
    island: Island
    incarnation: int
    """The number of the island's life, as in `coordinator.protocol.Life`."""

    def at(self, step: int) -> NDArray[np.uint32]:
        """Return the words of the key of a step, uint32 [4]; `step` counts from 0 in each life."""
        name = zlib.crc32(self.island.encode())
        return np.array([self.seed & 0xFFFFFFFF, name, self.incarnation, step], np.uint32)


NO_DRAWS = Draws(0, Island(""), 0)
"""The draws of a step outside a run, such as one that is only compiled or timed."""


def key_of(words: jax.typing.ArrayLike) -> jax.Array:
    """Return the key of these words, uint32 [4]: a scalar key of JAX's default generator."""
    key = jax.random.key(0)
    for word in jax.numpy.asarray(words):
        key = jax.random.fold_in(key, word)
    return key
