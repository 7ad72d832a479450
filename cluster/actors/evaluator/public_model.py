"""The syncer's model as an evaluator fetches it: the public fragments, from their shards."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ray
from ray.exceptions import RayActorError

from cluster.actors.directory import Directory, holder_of
from cluster.config.schema import Config
from coordinator.errors import Unreachable
from coordinator.fragments import Flat
from coordinator.protocol import Fragment, Version

AGAIN_S, AWAY_S = 1.0, 60.0
"""Seconds between two questions to a shard that is away, and until the evaluator gives up."""
PublicModel: TypeAlias = list[tuple[Version, Flat]]
"""The public fragments in order, each with its version."""


def public_model(config: Config, actors: Directory) -> PublicModel | None:
    """Return the public fragments; None while a shard has no model.

    Errors: `RayActorError` while a shard is being restarted.
    """
    holder = holder_of(config)
    fragments = [Fragment(p) for p in range(config.sync.fragments)]
    answers: Any = ray.get([actors[holder[p]].whole.remote([p]) for p in fragments])
    return None if None in answers else [answer[0] for answer in answers]


class WantedModel:
    """The public fragments in wanted versions, which are kept for the next evaluation of them."""

    def __init__(self, look: Callable[[], PublicModel | None]) -> None:
        """Prepare; `look` returns the present public fragments, as `public_model` does."""
        self._look = look
        self._last: tuple[list[Version], list[Flat]] | None = None

    def of(self, versions: Sequence[Version]) -> list[Flat]:
        """Return the fragments in these versions; keep them for another call with the same ones.

        Errors: `Unreachable` if the shards do not have them, or are away for `AWAY_S`.
        """
        if self._last is None or self._last[0] != [*versions]:
            self._last = [*versions], self._fetch([*versions])
        return self._last[1]

    def _fetch(self, versions: list[Version]) -> list[Flat]:
        """Fetch the public fragments, with retries while a shard is away.

        Errors: `Unreachable` if they are not of these versions, or a shard is away for `AWAY_S`.
        """
        until_s = time.monotonic() + AWAY_S
        while True:
            try:
                found = self._look()
            except RayActorError as error:
                logging.info("asking again: %s", type(error).__name__)
                found = None
            if found is not None and [version for version, _ in found] == versions:
                return [flat for _, flat in found]
            if found is not None or time.monotonic() > until_s:
                raise Unreachable("the shards do not have the model to evaluate")
            time.sleep(AGAIN_S)
