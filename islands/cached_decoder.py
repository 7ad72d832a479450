"""A decoder that keeps what a model has computed of the tokens before; models extend it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from islands.text_model import Scores

Cache = TypeVar("Cache")


class CachedDecoder(ABC, Generic[Cache]):
    """A decoder of one model, for at most as many tokens as a window of the data has.

    `Cache` is a tree of arrays that holds what later tokens need of earlier ones.
    """

    def __init__(self, vocabulary: int, window: int) -> None:
        """Create the decoder; `vocabulary`: the number of scores of each token."""
        self._vocabulary, self._window, self._count = vocabulary, window, 0
        self._cache: Cache | None = None

    @property
    def most(self) -> int:
        """Tokens that it can keep."""
        return self._window

    def read(self, params: Any, tokens: Sequence[int]) -> Scores:
        """Forget everything, take these tokens, and return the scores of the next one."""
        if not 1 <= len(tokens) <= self._window:
            raise ValueError(f"{len(tokens)} tokens, 1 to {self._window} can be read")
        padded = np.zeros(self._window, np.int32)
        padded[: len(tokens)] = tokens
        scores, self._cache = self._read(params, padded, len(tokens))
        self._count = len(tokens)
        return np.asarray(scores)

    def step(self, params: Any, token: int) -> Scores:
        """Take one more token, and return the scores of the next one."""
        if self._cache is None or self._count >= self._window:
            raise ValueError(f"{self._count} tokens are kept of at most {self._window}: read first")
        scores, self._cache = self._step(params, self._cache, np.int32(token), self._count)
        self._count += 1
        return np.asarray(scores)

    @cached_property
    def _step(self) -> Any:
        return jax.jit(self._next, donate_argnums=1)

    @cached_property
    def _read(self) -> Any:
        def read(params: Any, tokens: jax.Array, count: int) -> tuple[jax.Array, Cache]:
            def one(i: int, carried: tuple[jax.Array, Cache]) -> tuple[jax.Array, Cache]:
                return self._next(params, carried[1], tokens[i], i)

            blank = jnp.zeros(self._vocabulary, jnp.float32), self._blank()
            return jax.lax.fori_loop(0, count, one, blank)

        return jax.jit(read)

    @abstractmethod
    def _blank(self) -> Cache:
        """Return the cache before the first token."""

    @abstractmethod
    def _next(
        self, params: Any, cache: Cache, token: jax.Array, position: Any
    ) -> tuple[jax.Array, Cache]:
        """Return the scores after a token at this position, [V], and the cache with that token."""
