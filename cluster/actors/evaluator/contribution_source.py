"""The contributions whose effect an evaluator measures: the shards give one at a time."""

from __future__ import annotations

import logging
from itertools import cycle

import ray
from ray.exceptions import RayError

from cluster.actors.directory import Directory, holder_of
from cluster.config.schema import Config
from cluster.workers.contribution_effect import SampledContribution

log = logging.getLogger("archipelago.evaluator")
ANSWER_S = 60.0
"""The timeout in seconds of the request for a contribution; without an answer none is measured."""


class ContributionSource:
    """The shards of a run, which are asked in turn for a contribution to measure."""

    def __init__(self, config: Config, judge: str) -> None:
        """Prepare; `judge`: the name of the evaluator."""
        self._judge = judge
        self._shards = cycle(dict.fromkeys(holder_of(config).values()))

    def take(self, actors: Directory) -> SampledContribution | None:
        """Return a contribution that is part of the public model; `actors`: those of the run.

        Return None if the shard has kept none, is away, or does not answer in time.
        """
        shard = next(self._shards)
        try:
            return ray.get(actors[shard].contribution.remote(self._judge), timeout=ANSWER_S)
        except RayError as error:
            log.info("no contribution is measured: %s of %s", type(error).__name__, shard)
            return None
