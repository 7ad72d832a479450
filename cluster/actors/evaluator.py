"""The actor of the evaluator: it makes the initial model and judges the public one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError

from cluster.actors.directory import Directory, holder_of, setup_logging
from cluster.actors.inject import Breakable
from cluster.config.schema import Config
from cluster.host.evaluator import Judged
from cluster.names import SYNCER
from cluster.status import RunStatus
from coordinator.fragments import Flat, Layout
from coordinator.protocol import Fragment

if TYPE_CHECKING:
    from cluster.host.evaluator import Evaluator


class EvaluatorActor(Breakable):
    """Makes the initial model; judges the syncer's model now and then, and at the end."""

    def __init__(self, config: str, namespace: str) -> None:
        setup_logging()
        self._config = Config.model_validate_json(config, strict=False)
        self._actors = Directory(namespace)

        self._made: Evaluator | None = None

    @property
    def _evaluator(self) -> Evaluator:
        from cluster.host.evaluator import Evaluator  # JAX only where it is needed

        self._made = self._made or Evaluator(self._config)
        return self._made

    @ray.method(concurrency_group="asking")
    def judged(self) -> Judged:
        """How far it is, also while it judges."""
        made = self._made
        return Judged(0, 0.0) if made is None else made.judged

    def initial(self) -> tuple[Layout, list[Flat]]:
        return self._evaluator.layout, self._evaluator.initial()

    def initial_loss(self) -> float:
        return self._evaluator.initial_loss

    def loss(self, flats: list[Flat]) -> float:
        return self._evaluator.loss(flats)

    def sample(self, flats: list[Flat]) -> float:
        """Over the windows that `judge` is of."""
        return self._evaluator.sample(flats)

    def judge(self) -> None:
        """Take a consistent copy of the public fragments and tell the syncer how good they are."""
        fragments = [Fragment(p) for p in range(self._config.sync.fragments)]
        try:
            status: RunStatus = ray.get(self._actors[SYNCER].status.remote())
            holder = holder_of(self._config)
            wholes: Any = ray.get([self._actors[holder[p]].whole.remote([p]) for p in fragments])
            if None in wholes:
                return  # a shard is just coming back
            loss = self._evaluator.sample([whole[0][1] for whole in wholes])
            ray.get(self._actors[SYNCER].evaluated.remote(status["t"], loss))
        except RayActorError as error:  # one of them is being restarted: another time
            logging.info("not judged this time: %s", type(error).__name__)
