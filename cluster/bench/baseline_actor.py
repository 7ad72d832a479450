"""An island's actor that trains with the others or alone, as it is told: for `bench overhead`.

Alone is plain training: the same compiled step on the same stream in the same process, with nothing
of ours between two steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from cluster.actors.directory import holder_of, setup_logging
from cluster.actors.giving import Giving
from cluster.actors.inject import Cable
from cluster.actors.island import IslandActor
from cluster.actors.link import RayLink
from cluster.config.rule import group_of
from cluster.config.schema import Config
from cluster.failures import Reason
from cluster.names import Seat, seat_of
from coordinator.protocol import Island, Lease

if TYPE_CHECKING:  # JAX is imported when it is needed, never in a constructor
    from cluster.host.build import Parts
    from islands.learner import Learner


@dataclass(frozen=True, slots=True)
class Counted:
    """Steps since this way of training began, and the training thread's seconds of all of them;
    `ours_s`: of these, what was neither computing a step nor reading data."""

    steps: int
    thread_s: float
    ours_s: float


@dataclass(slots=True)
class Alone:
    """Plain training, on the thread that calls `run`."""

    parts: Parts
    batch_size: int
    seed: int
    going: bool = True
    counted: Counted = field(default_factory=lambda: Counted(0, 0.0, 0.0))

    def run(self) -> None:
        task, inner = self.parts.task, self.parts.inner
        state, stream = inner.start(task.init(self.seed)), task.stream(self.batch_size)
        steps, leases, began_s = 0, 0, time.perf_counter()
        while self.going:
            if stream.remaining < self.batch_size:
                stream.add(Lease(leases))
                leases += 1
            state, measures = inner.step(state, stream.next(), steps)
            float(measures.loss)  # as the learner does: the step is over when its loss is known
            steps += 1
            self.counted = Counted(steps, time.perf_counter() - began_s, 0.0)


class BaselineProcess:
    """What an island's actor holds: `learner` while it trains with the others, else None."""

    def __init__(self, config: Config, island: Island, namespace: str) -> None:
        self.learner: Learner | None = None
        self._config, self._island = config, island
        holder = holder_of(config)
        self._link = RayLink(namespace, Cable(), seat_of(island), holder, relievable=False)
        self._alone: Alone | None = None
        self._thread: threading.Thread | None = None
        self._broken: BaseException | None = None

    @cached_property
    def parts(self) -> Parts:
        from cluster.host.build import compiled

        return compiled(self._config, group_of(self._config, self._island))

    def together(self) -> None:
        from cluster.host.build import assemble

        self.rest()
        self.learner = assemble(self._config, self._island, self.parts, self._link)
        self._begin(self.learner.run)

    def alone(self) -> None:
        self.rest()
        batch_size = group_of(self._config, self._island).batch_size
        self._alone = Alone(self.parts, batch_size, self._config.run.seed)
        self._begin(self._alone.run)

    def rest(self) -> None:
        """Train no more; returns when the step under way is over."""
        if self.learner is not None:
            self.learner.leave()
        if self._alone is not None:
            self._alone.going = False
        if self._thread is not None:
            self._thread.join()
        self.learner = self._alone = self._thread = None

    def counted(self) -> Counted:
        """Errors: what broke the training."""
        if self._broken is not None:
            raise self._broken
        if self.learner is not None:
            steps, vitals = self.learner.vitals
            training_s = vitals.computing_s + vitals.data_s + vitals.idle_s
            return Counted(steps, training_s + vitals.talking_s, vitals.talking_s)
        return Counted(0, 0.0, 0.0) if self._alone is None else self._alone.counted

    def break_down(self, reason: Reason, error: BaseException, *, known: bool = False) -> NoReturn:
        """What an island's method raised breaks the measurement."""
        self._broken = self._broken or error
        raise error

    def _begin(self, train: Callable[[], None]) -> None:
        def body() -> None:
            try:
                train()
            except BaseException as error:
                self._broken = error
                raise

        self._thread = threading.Thread(target=body, name="train", daemon=True)
        self._thread.start()


class SoloActor(IslandActor):
    """To syncer and shard an island as any other."""

    def __init__(self, config: str, group: str, seat: Seat, namespace: str) -> None:
        setup_logging()
        self._cable, self._giving, self._gang = Cable(), Giving(), None
        plain = Config.model_validate_json(config, strict=False)
        self.process = BaselineProcess(plain, Island(seat), namespace)

    def prepare(self) -> None:
        """Import and compile; takes as long as the start of any island."""
        _ = self.process.parts

    def together(self) -> None:
        self.process.together()

    def alone(self) -> None:
        self.process.alone()

    def rest(self) -> None:
        self.process.rest()

    def counted(self) -> Counted:
        return self.process.counted()
