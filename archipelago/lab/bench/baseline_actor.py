"""An island's actor for `bench overhead` that trains with the others or alone, on request.

Alone means plain training: the same compiled step on the same stream in the same process, without
any work of ours between two steps. The hosts of an island of several get no orders then, so they
agree on a number of steps before they begin.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import ray

from cluster.actors.directory import holder_of, setup_logging
from cluster.actors.fault_injection import Cable
from cluster.actors.hosts.actor import HostActor
from cluster.actors.hosts.ray_gang import RayGang
from cluster.actors.island.actor import IslandActor
from cluster.actors.island.learner_calls import LearnerCalls
from cluster.actors.learner_link import RayLink
from cluster.config.rule import group_of
from cluster.config.schema import Config
from cluster.failures import Reason
from cluster.names import Seat, seat_of
from coordinator.errors import RunFailed
from coordinator.protocol import Island, Lease

if TYPE_CHECKING:  # JAX is imported when it is needed, never in a constructor
    from cluster.workers.assembly import LearnerParts
    from islands.learner import Learner

log = logging.getLogger("archipelago.bench")


@dataclass(frozen=True, slots=True)
class Counted:
    """The work of the training thread since this way of training began."""

    steps: int
    """Inner steps."""
    thread_s: float
    """Seconds of the training thread for all of these steps."""
    ours_s: float
    """The part of `thread_s` that was neither computing a step nor reading data."""


FOREVER = 10**9
"""A number of steps that is never reached."""
WAIT_S = 60.0
"""Seconds that another host may take to end a life."""


@dataclass(slots=True)
class Alone:
    """Plain training on the thread that calls `run`."""

    parts: LearnerParts
    batch_size: int
    seed: int
    limit: int = FOREVER
    """Steps after which it ends."""
    going: bool = True
    """Set to false to end after the step under way."""
    counted: Counted = field(default_factory=lambda: Counted(0, 0.0, 0.0))

    def run(self) -> None:
        """Train until the limit, or until `going` is false."""
        import jax

        from islands.corpus import Stream

        task, inner = self.parts.task, self.parts.inner
        stream = task.stream(self.batch_size)
        if inner.devices.shared and isinstance(stream, Stream):
            stream.rows = inner.devices.rows(self.batch_size)
        state = inner.start(jax.tree.map(np.asarray, task.init(self.seed)))
        steps, leases, began_s = 0, 0, time.perf_counter()
        while self.going and steps < self.limit:
            if stream.remaining < self.batch_size:
                stream.add(Lease(leases))
                leases += 1
            state, measures = inner.step(state, stream.next(), steps)
            float(measures.loss)  # a step ends when its loss has been read, as in a learner
            steps += 1
            self.counted = Counted(steps, time.perf_counter() - began_s, 0.0)


class BaselineProcess:
    """The state of an island's actor; `learner` is set while it trains with the others."""

    def __init__(
        self,
        config: Config,
        island: Island,
        namespace: str,
        gather: Callable[[], RayGang] | None = None,
    ) -> None:
        """Prepare an idle island; `gather` brings its other hosts together, if it has any."""
        self.learner: Learner | None = None
        self._config, self._island, self._gather = config, island, gather
        self._gang: RayGang | None = None
        self._others: list[Any] = []
        holder = holder_of(config)
        self._link = RayLink(namespace, Cable(), seat_of(island), holder, relievable=False)
        self._alone: Alone | None = None
        self._thread: threading.Thread | None = None
        self._broken: BaseException | None = None

    @cached_property
    def parts(self) -> LearnerParts:
        """The compiled parts of the learner, made at the first access."""
        if self._gather is not None:
            self._gang = self._gather()
        from cluster.workers.assembly import compiled, ranges_of

        parts = compiled(self._config, group_of(self._config, self._island))
        if self._gang is not None:
            self._gang.narrowed(self._link, ranges_of(parts), parts.inner.devices.parting)
        return parts

    def together(self) -> None:
        """Train with the other islands, through the syncer."""
        from cluster.workers.assembly import assemble

        self.rest()
        parts, lead = self.parts, None if self._gang is None else self._gang.lead
        self.learner = assemble(self._config, self._island, parts, self._link, lead)
        self._begin(self.learner.run)

    def alone(self, steps: int) -> None:
        """Train alone: for `steps` steps with several hosts, else until it is stopped."""
        self.rest()
        batch_size = group_of(self._config, self._island).batch_size
        self._alone = Alone(self.parts, batch_size, self._config.run.seed)
        if self._gang is not None:
            self._alone.limit = steps
            self._others = [host.alone.remote(steps) for host in self._gang.others]
        self._begin(self._alone.run)

    def rest(self) -> None:
        """Stop training, and return when it has stopped.

        A single host finishes the step under way; several hosts finish the steps that they agreed
        on.
        """
        if self.learner is not None:
            self.learner.leave()
        if self._alone is not None and self._gang is None:
            self._alone.going = False
        if self._thread is not None:
            self._thread.join()
        ray.get(self._others)
        self.learner = self._alone = self._thread = None
        self._others = []

    def counted(self) -> Counted:
        """Return the work since this way of training began.

        Errors: the error that broke the training; `RunFailed` if the agreed steps are over.
        """
        if self._broken is not None:
            raise self._broken
        if self._alone is not None and self._alone.counted.steps == self._alone.limit:
            raise RunFailed(f"a window was not over after {self._alone.limit} steps")
        if self.learner is not None:
            steps, vitals = self.learner.vitals
            training_s = vitals.computing_s + vitals.data_s + vitals.idle_s
            return Counted(steps, training_s + vitals.talking_s, vitals.talking_s)
        return Counted(0, 0.0, 0.0) if self._alone is None else self._alone.counted

    def break_down(self, reason: Reason, error: BaseException, *, known: bool = False) -> NoReturn:
        """Record the error, so that the measurement fails, and raise it."""
        self._broken = self._broken or error
        raise error

    def _begin(self, train: Callable[[], None]) -> None:
        """Train on a thread, and record the error if training fails."""

        def body() -> None:
            try:
                train()
            except BaseException as error:
                self._broken = error
                raise

        self._thread = threading.Thread(target=body, name="train", daemon=True)
        self._thread.start()


class SoloActor(IslandActor):
    """An actor for `bench overhead` that syncer and shard treat as an ordinary island."""

    def __init__(self, config: str, group: str, seat: Seat, namespace: str) -> None:
        setup_logging()
        self._cable, self._calls = Cable(), LearnerCalls(lambda: self._learner)
        plain = Config.model_validate_json(config, strict=False)
        own_group = plain.group(group)

        def gather() -> RayGang:
            self._calls.gang = gang = RayGang(config, own_group, seat, namespace, _end, SoloHost)
            return gang

        gathered = gather if own_group.hosts > 1 else None
        self.process = BaselineProcess(plain, Island(seat), namespace, gathered)

    def prepare(self) -> None:
        """Import and compile; this takes as long as the start of any island."""
        _ = self.process.parts

    def together(self) -> None:
        """Train with the other islands, through the syncer."""
        self.process.together()

    def alone(self, steps: int) -> None:
        """Train alone: for `steps` steps with several hosts, else until it is stopped."""
        self.process.alone(steps)

    def rest(self) -> None:
        """Stop training, and return when it has stopped."""
        self.process.rest()

    def counted(self) -> Counted:
        """Return the work since this way of training began.

        Errors: see `BaselineProcess.counted`.
        """
        return self.process.counted()


class SoloHost(HostActor):
    """A further host of an island that trains with the others or alone."""

    @ray.method(concurrency_group="asking")
    def alone(self, steps: int) -> None:
        """Train alone for `steps` steps, in step with the first host; return when they are done.

        Errors: `RunFailed` if the previous life does not end.
        """
        end_s = time.monotonic() + WAIT_S
        while self._follower is None or self._parts is None or not self._follower.idle:
            if time.monotonic() > end_s:
                raise RunFailed(f"a host of {self._group.group} has not ended its life")
            time.sleep(0.01)
        Alone(self._parts, self._group.batch_size, self._config.run.seed, steps).run()


def _end(why: str) -> NoReturn:
    """End this process, since one of its hosts is gone."""
    log.error("an island ends: %s", why)
    logging.shutdown()
    os._exit(1)
