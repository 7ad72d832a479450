"""An island that sums gradients, in a sequence of rings.

One thread trains and owns the arrays. Between two rings its state is on the host, since the arrays
on the devices are lost with a ring. Other threads call `pause`, `peek` and `state_of`.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from cluster.allreduce import rendezvous as meeting
from cluster.allreduce.member_batches import member_batches
from cluster.allreduce.member_reports import MemberReports
from cluster.allreduce.pace import StepPace
from cluster.allreduce.ring_messages import RingDecision, TrainingPosition
from cluster.allreduce.saved_state import RingState
from cluster.config.rule import group_of
from cluster.config.schema import Config
from cluster.workers.assembly import optimizer_of, task_of
from coordinator.errors import ArchipelagoError
from coordinator.protocol import Island, Life, Report, Vitals
from islands.activity_clock import ActivityClock
from islands.data.segments import counted_in
from islands.own_wire import built_in
from islands.randomness import Draws
from islands.time_budget import Activity
from islands.training_batch import training_batch

if TYPE_CHECKING:  # `_turn` imports the step late: JAX compiles nothing before there is a ring
    from cluster.allreduce.step import RingStep, StepTotals
    from islands.inner import InnerState

log = logging.getLogger("archipelago.ring")
TELL_S = 0.5
"""Seconds between two reports of the ring's position by its first member."""


class NotFinite(ArchipelagoError):
    """An island has gradients that are not finite, which would spoil the mean of all for good.

    The process of the island restarts, which the other members see as a death.
    """

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(step, loss)

    def __str__(self) -> str:
        step, loss = self.args
        return f"its gradients of step {step} are not all finite (its loss is {loss:.4g})"


class RingLink(Protocol):
    """An island's connection to the conductor and to the other islands."""

    def enter(self, island: Island) -> Life:
        """Ask for a new life.

        Errors: `Rejected`.
        """
        ...

    def ready(self, life: Life, held: TrainingPosition | None, wasted: int) -> RingDecision | None:
        """Wait for a place in a ring, and return it; None if this life gets no more places."""
        ...

    def turned(self, life: Life, ring: int, held: TrainingPosition) -> None:
        """Report the position of the ring."""
        ...

    def report(self, report: Report, vitals: Vitals) -> None:
        """Report the island's own progress and time."""
        ...

    def keep(self, life: Life, state: RingState) -> None:
        """Send a snapshot to be stored."""
        ...

    def snapshot(self) -> RingState:
        """Return the newest snapshot of the conductor."""
        ...

    def state_of(self, donor: Life) -> RingState | None:
        """Return the state of another island; None if it cannot be had."""
        ...


class RingMember:
    """An island in a sequence of rings.

    Two attributes carry out a fault plan: a step takes `drag` times as long, and gradients are
    multiplied by `spoil`.
    """

    def __init__(
        self, config: Config, island: Island, link: RingLink, clock: ActivityClock | None = None
    ) -> None:
        """Create an island that is in no ring; `clock`: the time budget of this process."""
        self._config, self._link = config, link
        self._clock = clock or ActivityClock(time.perf_counter)
        self._group = group_of(config, island)
        self._island, self._task = island, task_of(config)
        self.drag = self.spoil = 1.0
        self._lock = threading.Lock()
        self._host: RingState | None = None  # the state between two rings
        self._pausing = 0  # number of the newest ring that it has been ordered to leave
        self._ring = 0  # number of the ring that it is in; 0: none
        self._peeks: list[Future[RingState]] = []
        self._life: Life
        self._reports, self._pace = MemberReports(link.report, self._clock), StepPace(self._group)
        self._told_s = 0.0
        self._wires = frozenset[int]()  # connections to the members of its ring

    def run(self) -> None:
        """Train in rings until the run is over or this island is released.

        Errors: `Rejected`, `NotFinite`, or any exception of the task.
        """
        self._life, wasted = self._link.enter(self._island), 0
        while True:
            host = self._host
            self._clock.switch(Activity.WAITING)
            turn = self._link.ready(self._life, None if host is None else host.held, wasted)
            if turn is None:
                return
            self._clock.switch(Activity.RESTORING)
            if host is None or host.held != turn.held:
                host = self._link.state_of(turn.donor) if turn.donor else None
                host = host or self._link.snapshot()
            if host.held != turn.held:
                log.warning("asked for %s, given %s: ready again", turn.held, host.held)
                self._host, wasted = host, 0
                continue
            wasted = self._turn(turn, host)

    # --- called by others -------------------------------------------------------------------------

    def pause(self, ring: int) -> None:
        """Leave this ring after the current step, and so end it for all members."""
        with self._lock:
            self._pausing = max(self._pausing, ring)

    def peek(self, within_s: float) -> RingState | None:
        """Return the parameters as of the next step boundary; None if that takes over `within_s`.

        Between two rings this is the whole state on the host, if there is one.
        """
        with self._lock:
            if self._ring == 0:
                return self._host
            waiting: Future[RingState] = Future()
            self._peeks.append(waiting)
        try:
            return waiting.result(within_s)
        except TimeoutError:
            return None

    def state_of(self) -> RingState | None:
        """Return the whole state on the host, as of the end of the last ring; None if none yet."""
        with self._lock:
            return self._host

    # --- a ring -----------------------------------------------------------------------------------

    def _turn(self, turn: RingDecision, host: RingState) -> int:
        """Train in this ring until it ends; return the tokens of a step that broke, else 0."""
        from cluster.allreduce.step import RingStep

        if turn.members > 1:
            meeting.join(turn.address, turn.members, turn.rank)
        wire = built_in(self._config.sync.wire_up)
        accumulate = self._group.accumulate
        step = RingStep(self._task, optimizer_of(self._config), wire, turn.members, accumulate)
        tree = jax.tree.structure(self._task.shapes)
        state = step.start(jax.tree.unflatten(tree, list(host.params)), host.moments)
        self._clock.switch(Activity.COMPILING)
        step.compile(state, training_batch(self._task, self._group.batch_size))
        with self._lock:
            self._ring = turn.ring
        log.info("in ring %d of %d, from step %d", turn.ring, turn.members, turn.held.step)
        self._clock.switch(None)
        state, held, wasted = self._steps(turn, step, state)
        self._host = _on_host(held, state, moments=True)
        with self._lock:
            self._ring, peeks, self._peeks = 0, self._peeks, []
        for each in peeks:
            each.set_result(self._host)
        del state, step
        meeting.leave(self._wires)
        self._wires = frozenset()
        self._reports.spent()
        self._reports.report(self._life, always=True)
        return wasted

    def _steps(
        self, turn: RingDecision, step: RingStep, state: InnerState
    ) -> tuple[InnerState, TrainingPosition, int]:
        """Take steps until the ring ends; return the last state, and tokens of a broken step."""
        held, windows = turn.held, turn.members * self._group.batch_size
        lease_windows = self._config.data.lease_windows
        draws = Draws(self._config.run.seed, self._life.island, self._life.incarnation)
        batches = member_batches(self._task, turn, windows, lease_windows)
        while held.step < self._config.run.steps:
            before_s = time.perf_counter()
            batch = batches()
            tokens, loaded_s = self._task.tokens(batch), time.perf_counter()
            loss, buckets = step.gradients(state, batch, draws.at(held.step))
            jax.block_until_ready(buckets)
            if self.spoil != 1.0:
                buckets = [each * self.spoil for each in buckets]
            if not step.sound(loss, buckets):
                raise NotFinite(held.step + 1, float(loss))
            idle_s = self._pace.idle(time.perf_counter() - loaded_s, before_s, self.drag)
            with self._lock:
                leaving = self._pausing >= turn.ring
            computed_s = time.perf_counter()
            first = held.step == turn.held.step
            other_connections = meeting.connections() if first else frozenset[int]()
            try:
                buckets, totals = step.mean(loss, buckets, tokens, leaving, counted_in(batch))
                if first:  # the library connects only when it has something to send
                    self._wires = meeting.connections() - other_connections
            except jax.errors.JaxRuntimeError as error:
                log.warning("ring %d broke in step %d: %s", turn.ring, held.step + 1, error)
                self._reports.spent(data_s=loaded_s - before_s, idle_s=idle_s)
                return state, held, tokens
            summed_s = time.perf_counter()
            state = step.update(state, buckets, held.step)
            jax.block_until_ready(state.params)
            held = TrainingPosition(
                held.step + 1, held.tokens + totals.tokens, held.windows + windows
            )
            ended_s = time.perf_counter()
            self._reports.stepped(tokens)
            if not first:  # the first step also waited for all members to arrive
                self._reports.took(ended_s - before_s)
            self._reports.spent(
                loss=totals.loss,
                data_s=loaded_s - before_s,
                idle_s=idle_s,
                computing_s=computed_s - loaded_s - idle_s + ended_s - summed_s,
            )
            self._tell(turn, totals, held, state)
            if totals.leaving:
                break
        return state, held, 0

    def _tell(
        self, turn: RingDecision, totals: StepTotals, held: TrainingPosition, state: InnerState
    ) -> None:
        """Report, and answer requests for parameters; rank 0 reports the position of the ring."""
        began_s = time.perf_counter()
        last = totals.leaving > 0 or held.step >= self._config.run.steps
        if turn.rank == 0:
            first = held.step == turn.held.step + 1
            if first or last or began_s - self._told_s >= TELL_S:
                self._link.turned(self._life, turn.ring, held)
                self._told_s = began_s
            if not last and held.step % self._config.durability.snapshot_steps == 0:
                self._link.keep(self._life, _on_host(held, state, moments=True))
        with self._lock:
            peeks, self._peeks = self._peeks, []
        if peeks:
            seen = _on_host(held, state, moments=False)
            for each in peeks:
                each.set_result(seen)
        self._reports.report(self._life, always=False)
        self._reports.spent()


def _on_host(held: TrainingPosition, state: InnerState, *, moments: bool) -> RingState:
    """Return a copy of the state on the host; the next step donates the arrays on the devices."""

    def copied(tree: Any) -> list[NDArray[Any]]:
        return [np.array(leaf.addressable_data(0)) for leaf in jax.tree.leaves(tree)]

    return RingState(held, copied(state.params), copied(state.opt_state) if moments else None)
