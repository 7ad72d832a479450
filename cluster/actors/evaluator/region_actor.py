"""The evaluator of a region: it reads the region's held-out text, and only its losses leave.

It runs on a node of the region, on one CPU thread, and takes no device from an island.
"""

from __future__ import annotations

import logging
from functools import partial

import ray
from ray.exceptions import RayActorError

from cluster.actors.directory import Directory, setup_logging
from cluster.actors.evaluator.contribution_source import ContributionSource
from cluster.actors.evaluator.public_model import PublicModel, WantedModel, public_model
from cluster.actors.fault_injection import Breakable
from cluster.actors.restart import start_over
from cluster.config.schema import Config
from cluster.names import SYNCER, region_evaluator
from cluster.status import RunStatus
from cluster.tasks import watch_process
from cluster.workers.border import border_of
from cluster.workers.environment import drop_stale_addresses
from cluster.workers.evaluator_answers import Judged, RegionLoss
from cluster.workers.region_judge import RegionJudge
from coordinator.protocol import Version

log = logging.getLogger("archipelago.evaluator")


class RegionEvaluatorActor(Breakable):
    """An actor that evaluates the global model on the held-out text of its region."""

    def __init__(self, config: str, region: str, namespace: str) -> None:
        drop_stale_addresses()
        whole = Config.model_validate_json(config, strict=False)
        owner = f"{namespace}-{region_evaluator(region)}"
        border = border_of(whole, whole.group_in(region), owner)
        border.keep_output()
        setup_logging()
        watch_process(lambda error: start_over(f"a thread died: {error!r}"))
        self._config, self._actors = whole.evaluated_in(region), Directory(namespace)
        wanted = WantedModel(lambda: public_model(self._config, self._actors))
        source = ContributionSource(self._config, region_evaluator(region))
        take = partial(source.take, self._actors)
        self._judge = RegionJudge(self._config, border, self._newest, wanted.of, take)

    @ray.method(concurrency_group="asking")
    def judged(self) -> Judged:
        """Return the progress, also during an evaluation."""
        return self._judge.judged

    def sample(self, measures: bool = False) -> RegionLoss | str | None:
        """See `RegionJudge.sample`."""
        return self._judge.sample(measures)

    def loss(self, versions: list[Version]) -> RegionLoss | str | None:
        """See `RegionJudge.loss`."""
        return self._judge.loss(versions)

    def _newest(self) -> tuple[int, PublicModel] | None:
        """Return the syncer step and the public fragments; None while a process is away."""
        try:
            status: RunStatus = ray.get(self._actors[SYNCER].status.remote())
            found = public_model(self._config, self._actors)
        except RayActorError as error:  # one of them is being restarted: skip this time
            log.info("not evaluated this time: %s", type(error).__name__)
            return None
        return None if found is None else (status["t"], found)
