"""The actor of the evaluator: it makes the initial model and judges the public one."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError

from cluster.actors.directory import Directory, holder_of, setup_logging
from cluster.actors.fault_injection import Breakable
from cluster.actors.restart import start_over
from cluster.config.schema import Config
from cluster.names import SYNCER
from cluster.status import RunStatus
from cluster.tasks import watch_process
from cluster.workers.evaluator import Judged
from coordinator.errors import Unreachable
from coordinator.fragments import Flat, Layout
from coordinator.protocol import Fragment, Version

if TYPE_CHECKING:
    from cluster.actors.evaluator.hosts import TogetherEvaluator
    from cluster.workers.evaluator import Evaluator

AGAIN_S, AWAY_S = 1.0, 60.0
"""Between two questions to a shard that is away, and how long one is waited for."""


class EvaluatorActor(Breakable):
    """Makes the initial model; judges the syncer's model now and then, and at the end."""

    def __init__(self, config: str, namespace: str) -> None:
        setup_logging()
        watch_process(lambda error: start_over(f"a thread died: {error!r}"))
        self._config = Config.model_validate_json(config, strict=False)
        self._namespace, self._actors = namespace, Directory(namespace)
        self._made: Evaluator | None = None
        self._together: TogetherEvaluator | None = None  # in its stead, with other hosts
        self._drawn: list[Flat] | None = None
        self._last: tuple[list[Version], list[Flat]] | None = None

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
            from cluster.workers.evaluator import Evaluator  # JAX only where it is needed

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
        """How far it is, also while it judges."""
        made = self._made or self._together
        return Judged(0, 0.0) if made is None else made.judged

    def layout(self) -> Layout:
        return self._evaluator.layout

    def initial(self, p: Fragment) -> Flat:
        """A fragment of the initial model, which is drawn once and kept until it is judged."""
        if self._several:
            return self._all_hosts.initial_fragment(p)
        self._drawn = self._drawn or self._alone.initial()
        return self._drawn[p]

    def initial_loss(self) -> float:
        self._drawn = None
        return self._evaluator.initial_loss

    def loss(self, versions: list[Version]) -> float:
        """Of these versions of all fragments, which the shards have."""
        return self._evaluator.loss(self._of(versions))

    def sample(self, versions: list[Version]) -> float:
        """Over the windows that `judge` is of."""
        return self._evaluator.sample(self._of(versions))

    def judge(self) -> None:
        """Take a consistent copy of the public fragments and tell the syncer how good they are."""
        try:
            status: RunStatus = ray.get(self._actors[SYNCER].status.remote())
            if (found := self._public()) is None:
                return  # a shard is just coming back
            loss = self._evaluator.sample([flat for _, flat in found])
            ray.get(self._actors[SYNCER].evaluated.remote(status["t"], loss))
        except RayActorError as error:  # one of them is being restarted: another time
            logging.info("not judged this time: %s", type(error).__name__)

    def _public(self) -> list[tuple[Version, Flat]] | None:
        """The public fragments, or of several hosts the first one's ranges; None while a shard is
        without."""
        if self._several:
            return self._all_hosts.public()
        holder = holder_of(self._config)
        fragments = [Fragment(p) for p in range(self._config.sync.fragments)]
        wholes: Any = ray.get([self._actors[holder[p]].whole.remote([p]) for p in fragments])
        return None if None in wholes else [whole[0] for whole in wholes]

    def _of(self, versions: list[Version]) -> list[Flat]:
        """The fragments in these versions, kept for the next question about them.

        Errors: `Unreachable` if the shards do not have them, or are away for long.
        """
        if self._last is None or self._last[0] != versions:
            self._last = versions, self._fetch(versions)
        return self._last[1]

    def _fetch(self, versions: list[Version]) -> list[Flat]:
        until_s = time.monotonic() + AWAY_S
        while True:
            try:
                found = self._public()
            except RayActorError as error:
                logging.info("asking again: %s", type(error).__name__)
                found = None
            if found is not None and [version for version, _ in found] == versions:
                return [flat for _, flat in found]
            if found is not None or time.monotonic() > until_s:
                raise Unreachable("the shards do not have the model that shall be judged")
            time.sleep(AGAIN_S)
