"""The training thread of a learner: it owns the parameters, and does all work on them.

It steps, hands over, adopts and donates moments, at step boundaries and in the order that
`learner_state` decides. It waits only where `learner_state` requires it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

import jax
from optax import OptState

from coordinator.fragments import Flat
from coordinator.protocol import Fragment
from islands.activity_clock import ActivityClock
from islands.adopt import FragmentPort
from islands.corpus import Starved
from islands.exchange import FragmentSnapshot
from islands.hosts.orders import CopyOut, CutOut, Feed, InnerStep, Order, PutIn
from islands.learner_messages import End, Fed, Keep, Step, Stepped, Take
from islands.link import LearnerSettings
from islands.mailbox import Mailbox
from islands.moments import MomentSharing
from islands.randomness import Draws
from islands.replica import Replica
from islands.step_timing import StepTiming
from islands.task import Params, StreamLike, Task
from islands.thread_tasks import Adoption, HandInTask, Todo
from islands.time_budget import Activity
from islands.training_step import TrainingStep

DONATING_SHARE = 0.5
"""The largest share of a step's time that a donor spends copying moments at one boundary.

It copies at least one leaf. Meanwhile it does not train. A copy on the devices, made at once, would
take no time, but as much memory again as the moments, which a full device does not have.
"""


class Trainer:
    """The state of the training thread; no other thread reads or writes it during a life.

    `drag`: the factor by which a fault plan lengthens its steps.
    """

    def __init__(
        self,
        task: Task,
        inner: TrainingStep,
        port: FragmentPort,
        sharing: MomentSharing | None,
        settings: LearnerSettings,
        mail: Mailbox,
        now_s: Callable[[], float],
        tell: Callable[[Order], None],
        clock: ActivityClock,
    ) -> None:
        """Create the state; `tell` informs the other hosts before the same is done here."""
        self._task, self._inner, self._settings, self._clock = task, inner, settings, clock
        self._replica = Replica(inner, port, settings.encode, sharing)
        self._mail, self._now_s, self._tell = mail, now_s, tell
        self.drag = 1.0
        self._copying: list[jax.Array] = []  # ready once the work since the last step is done
        self._stream: StreamLike
        self._fed_s = self._rested_s = 0.0  # data seconds since the last step; end of that step
        self._timing = StepTiming(now_s, clock.learned)

    @property
    def params(self) -> Params:
        """The parameters, on the devices; None before the first life."""
        return self._replica.params

    def moments(self) -> OptState | None:
        """Free the parameters of the life before, and return its moments.

        So the old parameters take no memory beside the new ones.
        """
        return self._replica.end()

    def begin(
        self,
        params: Params | None,
        moments: OptState | None,
        public: Mapping[Fragment, Flat],
        shared: Mapping[Fragment, Flat],
        clock: int,
        stream: StreamLike,
        incarnation: int,
    ) -> None:
        """Begin a life from the public fragments; moments as in `Replica.begin`."""
        draws = Draws(self._settings.seed, self._settings.island, incarnation)
        self._replica.begin(params, moments, public, shared, clock, draws)
        self._stream = stream
        self._timing.begin()

    def train(self) -> bool:
        """Work step after step until this life is over; return whether its state is distrusted."""
        before_s = self._rested_s = self._now_s()
        self._clock.switch(None)
        while True:
            word = self._next(0.0)
            if word is None:  # it will have to wait, and not for the devices
                self._timing.settle()
                self._rested_s = self._now_s()
                self._account(0.0, self._mail.waits_for)
                word = self._next(math.inf)
                self._clock.switch(None)
            match word:
                case Step(held):
                    waited_s = self._now_s() - self._rested_s
                    before_s = self._step(before_s + waited_s if held else before_s)
                case HandInTask() | Keep() | Adoption() | Take() as word:
                    self._serve(word)
                case End(distrusted):
                    self._timing.settle()
                    self._account(0.0, Activity.STARTING)
                    return distrusted
                case None:
                    return False  # another thread of this learner has broken

    def _next(self, for_s: float) -> Todo | None:
        return self._mail.next_to_do(for_s, self._donate)

    def _step(self, before_s: float) -> float:
        """Take one inner step, and do the work at its end; return when this thread was done.

        `before_s`: when the step before ended. The devices may still compute the step until the
        next one is dispatched behind it, whose loss is read another step later. Only the first step
        of a life and paced steps are waited for. Hand-ins and adoptions come between two steps on
        the devices, and the step behind them is dispatched at once, too.

        All the time between two steps is accounted for: time that is neither computing nor data nor
        idling counts as copying. So does the time that the devices need for hand-ins, adoptions and
        donations, from the end of the step before to the end of that work. Time in which data is
        read while the devices still compute is computing.
        """
        began_s = self._now_s()
        clock = self._mail.rate_clock
        try:
            batch = self._stream.next()
        except Starved:
            self._starved(began_s)
            return before_s
        if not self._timing.computing:
            self._fed_s += self._now_s() - began_s
        fed_s = self._fed_s  # since the last step or wait
        if first := not self._timing.running:
            jax.block_until_ready((self._replica.state, self._copying))
        began_s = self._now_s()
        self._tell(InnerStep(clock))
        measures = self._replica.step(batch, clock)
        self._timing.settle(fed_s)  # of the step before, if the devices still compute it
        jax.block_until_ready(self._copying)
        self._copying = []
        self._timing.started(measures, began_s if first else self._now_s())
        slowed, idle_s = self.drag / self._settings.speed, 0.0
        awaited = measures.computed or math.isinf(self._timing.quickest_s)
        if slowed > 1 or self._settings.step_s or awaited:
            computed_s = self._timing.settle()
            idle_s = slowed * self._timing.quickest_s - computed_s if slowed > 1 else 0.0
        counted = self._task.tokens(batch) if measures.tokens is None else measures.tokens
        tokens = operator.index(counted)
        self._mail.happens(Stepped(tokens, self._stream.cursor, self._stream.remaining))
        self._serve_until(self._now_s())
        self._donate()
        idled_s = max(0.0, idle_s, before_s + self._settings.step_s - self._now_s())
        if idled_s > 0:
            self._serve_until(self._now_s() + idled_s)
        self._rested_s = ended_s = self._now_s()
        self._account(idled_s, None)
        self._clock.stepped(took_s := ended_s - before_s)
        self._mail.rested(self._timing.loss, took_s)
        return ended_s

    def _account(self, idled_s: float, then: Activity | None) -> None:
        """Account the time since the last call to its activities, and begin the activity `then`."""
        computed_s, fed_s = self._timing.take_computed_s(self._now_s()), self._fed_s
        parts = {Activity.COMPUTING: computed_s, Activity.DATA: fed_s, Activity.IDLE: idled_s}
        self._fed_s = 0.0
        self._clock.split(parts, then)

    def _starved(self, began_s: float) -> None:
        """Record that the data ran out: the stream holds no batch, whatever it reports.

        No step begins before more data has come.
        """
        self._rested_s = now_s = self._now_s()
        self._fed_s += now_s - began_s
        self._mail.starved(self._stream.remaining)

    def _serve_until(self, until_s: float) -> None:
        """Do the work of a boundary, and what arrives until then, except the end of the life."""
        while (word := self._next(until_s - self._now_s())) is not None:
            if isinstance(word, HandInTask | Keep | Adoption | Take):
                self._serve(word)
            else:
                self._mail.put_back(word)
                return

    def _donate(self) -> None:
        """Continue copying moments to the host for a donation, for part of a step's time."""
        if (request := self._mail.donations.asked()) is None:
            return
        donation, step_s = request
        self._timing.settle()
        until_s, copied = self._now_s() + DONATING_SHARE * step_s, donation.leaves
        for leaf in range(len(copied), len(self._inner.shares)):
            self._tell(CopyOut(donation.number, leaf))
            copied.append(self._inner.moment(self._replica.state, leaf))
            if self._now_s() >= until_s:
                return
        self._mail.donations.give(donation)

    def _serve(self, word: HandInTask | Keep | Adoption | Take) -> None:
        match word:
            case Take(lease):
                self._tell(Feed(lease))
                self._stream.add(lease)
                self._mail.happens(Fed(self._stream.remaining))
            case Keep(hand_over):
                if hand_over.contribution is not None:
                    self._tell(CutOut(hand_over, keep=True))
                    self._taken(self._replica.keep(hand_over))
            case HandInTask(hand_over):
                snapshot = None
                if hand_over.contribution is not None:
                    self._tell(CutOut(hand_over, keep=False))
                    snapshot = self._taken(self._replica.take(hand_over))
                self._mail.answer(word, snapshot)
            case Adoption(adopt, offer):
                p, version, keeps = adopt.fragment, adopt.version, adopt.keeps
                self._tell(PutIn(p, version, keeps, mean=offer.mean is not None))
                if (adopted := self._replica.adopt(p, *offer, keeps=keeps)) is not None:
                    self._copying.append(adopted)

    def _taken(self, snapshot: FragmentSnapshot) -> FragmentSnapshot:
        if (cut := snapshot.cut) is not None:
            self._copying += [cut.flat] if cut.moments is None else [cut.flat, cut.moments.flat]
        return snapshot
