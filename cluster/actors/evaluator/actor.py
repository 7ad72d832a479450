"""The actor of the evaluator: it makes the initial model and evaluates the public one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import ray
from ray.exceptions import RayActorError

from cluster.actors.directory import Directory, setup_logging
from cluster.actors.evaluator.contribution_source import ContributionSource
from cluster.actors.evaluator.public_model import PublicModel, WantedModel, public_model
from cluster.actors.fault_injection import Breakable
from cluster.actors.restart import start_over
from cluster.config.schema import Config
from cluster.names import EVALUATOR, SYNCER
from cluster.status import RunStatus
from cluster.tasks import watch_process
from cluster.workers.contribution_effect import effect_of
from cluster.workers.environment import drop_stale_addresses
from cluster.workers.evaluator_answers import ContributionEffect, Judged
from coordinator.fragments import Flat, Layout
from coordinator.protocol import Fragment, Version

if TYPE_CHECKING:
    from cluster.actors.evaluator.hosts import TogetherEvaluator
    from cluster.workers.evaluator import Evaluator


class EvaluatorActor(Breakable):
    """An actor that makes the initial model, and evaluates the syncer's model now and then."""

    def __init__(self, config: str, namespace: str) -> None:
        setup_logging()
        drop_stale_addresses()
        watch_process(lambda error: start_over(f"a thread died: {error!r}"))
        self._config = Config.model_validate_json(config, strict=False)
        self._namespace, self._actors = namespace, Directory(namespace)
        self._made: Evaluator | None = None
        self._together: TogetherEvaluator | None = None  # in its stead, if there are several hosts
        self._drawn: list[Flat] | None = None
        self._wanted = WantedModel(self._public)
        self._contributions = ContributionSource(self._config, EVALUATOR)

    @property
    def _evaluator(self) -> Evaluator | TogetherEvaluator:
        return self._all_hosts if self._several else self._alone

    @property
    def _several(self) -> bool:
        return self._config.monitor.evaluator.hosts > 1

    @property
    def _alone(self) -> Evaluator:
        if self._made is None:
            from cluster.workers.assembly import mesh_of
            from cluster.workers.evaluator import Evaluator  # imports JAX only when needed

            self._made = Evaluator(self._config, mesh_of(self._config.monitor.evaluator))
        return self._made

    @property
    def _all_hosts(self) -> TogetherEvaluator:
        if self._together is None:
            from cluster.actors.evaluator.hosts import TogetherEvaluator

            self._together = TogetherEvaluator(self._config.model_dump_json(), self._namespace)
        return self._together

    @ray.method(concurrency_group="asking")
    def judged(self) -> Judged:
        """Return the progress, also during an evaluation."""
        evaluator = self._made or self._together
        return Judged(0, 0.0) if evaluator is None else evaluator.judged

    def layout(self) -> Layout:
        """Return how the model is cut into fragments."""
        return self._evaluator.layout

    def initial(self, p: Fragment) -> Flat:
        """Return a fragment of the initial model; that is drawn once and kept until evaluated."""
        if self._several:
            return self._all_hosts.initial_fragment(p)
        self._drawn = self._drawn or self._alone.initial()
        return self._drawn[p]

    def initial_loss(self) -> float:
        """Return the held-out loss of the initial model, and drop that model."""
        self._drawn = None
        return self._evaluator.initial_loss

    def loss(self, versions: list[Version]) -> float:
        """Return the held-out loss of these versions of all fragments, which the shards must have.

        Errors: `Unreachable` if they do not.
        """
        return self._evaluator.loss(self._wanted.of(versions))

    def metrics(self) -> dict[str, float]:
        """Return the task's metrics of the last evaluation, by name."""
        return self._evaluator.metrics

    def sample(self, versions: list[Version]) -> float:
        """Return the loss as `loss` does, but over the windows of `judge`."""
        return self._evaluator.sample(self._wanted.of(versions))

    def judge(self, measures: bool = False) -> ContributionEffect | None:
        """Evaluate a copy of the public fragments, and send the loss to the syncer.

        `measures`: whether to measure the effect of a contribution, too, and to return it.
        """
        sampled = self._contributions.take(self._actors) if measures else None
        try:
            status: RunStatus = ray.get(self._actors[SYNCER].status.remote())
            if (found := self._public()) is None:
                return None  # a shard is just coming back
            loss = self._evaluator.sample([flat for _, flat in found])
            ray.get(self._actors[SYNCER].evaluated.remote(status["t"], loss))
        except RayActorError as error:  # one of them is being restarted: skip this time
            logging.info("not judged this time: %s", type(error).__name__)
            return None
        return effect_of(sampled, found, loss, self._config.sync.wire_up, self._evaluator.sample)

    def _public(self) -> PublicModel | None:
        """Return the public fragments, or with several hosts this host's ranges of them.

        Return None while a shard has no model.
        """
        if self._several:
            return self._all_hosts.public()
        return public_model(self._config, self._actors)
