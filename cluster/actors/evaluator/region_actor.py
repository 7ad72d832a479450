"""The evaluator of a region: it reads the region's held-out text, and only its losses leave.

It runs on a node of the region, on one CPU thread, and takes no device from an island. Exceptions
leave as their class and a code if the region keeps its texts, like those of an island.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import ray
from ray.exceptions import RayActorError

from cluster.actors.directory import Directory, setup_logging
from cluster.actors.evaluator.public_model import WantedModel, public_model
from cluster.actors.fault_injection import Breakable
from cluster.actors.restart import start_over
from cluster.config.region_tables import Leaving
from cluster.config.schema import Config
from cluster.names import SYNCER, region_evaluator
from cluster.status import RunStatus
from cluster.tasks import watch_process
from cluster.workers.border import border_of
from cluster.workers.environment import drop_stale_addresses
from cluster.workers.evaluator import Judged, RegionLoss
from coordinator.protocol import Version

if TYPE_CHECKING:
    from cluster.workers.evaluator import Evaluator

log = logging.getLogger("archipelago.evaluator")


class RegionEvaluatorActor(Breakable):
    """An actor that evaluates the global model on the held-out text of its region."""

    def __init__(self, config: str, region: str, namespace: str) -> None:
        drop_stale_addresses()
        whole = Config.model_validate_json(config, strict=False)
        owner = f"{namespace}-{region_evaluator(region)}"
        self._border = border_of(whole, whole.group_in(region), owner)
        self._border.keep_output()
        setup_logging()
        watch_process(lambda error: start_over(f"a thread died: {error!r}"))
        self._config = config_here = whole.evaluated_in(region)
        self._actors = actors = Directory(namespace)
        self._made: Evaluator | None = None
        self._wanted = WantedModel(lambda: public_model(config_here, actors))

    @property
    def _evaluator(self) -> Evaluator:
        if self._made is None:
            from cluster.workers.evaluator import Evaluator

            self._made = Evaluator(self._config)
        return self._made

    @ray.method(concurrency_group="asking")
    def judged(self) -> Judged:
        """Return the progress, also during an evaluation."""
        return Judged(0, 0.0) if self._made is None else self._made.judged

    def sample(self) -> RegionLoss | str | None:
        """Return the loss of the present model over the windows of an evaluation during the run.

        Return None if the syncer or a shard is just coming back, and the reason of a failure in
        words that may leave the region.
        """
        return self._passed(self._sample)

    def loss(self, versions: list[Version]) -> RegionLoss | str | None:
        """Return the loss of these versions of all fragments, which the shards must have.

        Return the reason of a failure in words that may leave the region.
        """
        return self._passed(lambda: RegionLoss(0, self._evaluator.loss(self._wanted.of(versions))))

    def _sample(self) -> RegionLoss | None:
        evaluator = self._evaluator  # it reads and compiles first, then asks for the newest model
        try:
            status: RunStatus = ray.get(self._actors[SYNCER].status.remote())
            found = public_model(self._config, self._actors)
        except RayActorError as error:  # one of them is being restarted: skip this time
            log.info("not evaluated this time: %s", type(error).__name__)
            return None
        if found is None:
            return None
        return RegionLoss(status["t"], evaluator.sample([flat for _, flat in found]))

    def _passed(self, evaluate: Callable[[], RegionLoss | None]) -> RegionLoss | str | None:
        """Return an answer that may leave the region: numbers, or the class and code of an error.

        No exception leaves this method: Ray would send its text and its traceback to the fleet.
        """
        try:
            return self._border.passes(Leaving.REPORT, evaluate())
        except BaseException as error:  # noqa: BLE001 - its text must not reach Ray
            words = self._border.shown(error)
        log.error("the model could not be evaluated: %s", words)
        return words
