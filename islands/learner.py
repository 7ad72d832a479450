"""The learner: trains, reports, hands in, adopts, recovers.

One thread trains and owns the parameters; it waits for nobody, except with `overlap = 0`, the
lock-step mode. Others call `hand_in` and `offer`: they tell `learner_state` what has happened, the
training thread does what follows at its next step boundary, and copying, encoding and decoding stay
with the caller. A third thread speaks to the syncer. What is said and heard is in docs/protocol.md.
"""

from __future__ import annotations

import logging
import math
import operator
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from numpy.typing import NDArray
from optax import OptState

from coordinator.codec import Payload
from coordinator.errors import Malformed, Rejected, Unreachable
from coordinator.fragments import Flat, Layout, sew
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Join,
    Known,
    Lease,
    Life,
    Progress,
    Publication,
    Refused,
    Version,
    Vitals,
    Void,
)
from islands.adopt import AdoptRule, FragmentPort
from islands.corpus import Starved
from islands.encoder import ENCODERS, Numbers
from islands.exchange import Basis, Downlink, Missed, Snapshot, Uplink
from islands.inner import Inner, InnerState
from islands.learner_state import HEARTBEAT_S, LearnerState, Terms, begun, happen
from islands.learner_words import (
    Adopt,
    Asked,
    Beat,
    Ceased,
    End,
    Fed,
    HandOver,
    Happening,
    Heard,
    LetGo,
    Offered,
    Parked,
    Ready,
    Rested,
    Say,
    Step,
    Stepped,
    Take,
    Unheard,
    Want,
)
from islands.link import Habits, Link
from islands.task import Params, StreamLike, Task

log = logging.getLogger("archipelago.learner")

PACE_DRIFT = 1.01
"""A slowed learner keeps the pace of its quickest step, which it forgets by this factor a step: if
others take its cores for a while it idles less, and not more."""
DONATING_SHARE = 0.5
"""Of a step's time, at most, a donor spends at one boundary on copying its moments to the host, or
on one leaf of them: meanwhile it does not train. A copy on the devices, made at once, would take no
time, but as much memory again as the moments, which a device that is full does not have."""


@dataclass(frozen=True, slots=True)
class _Donation:
    """Moments for a learner that joins: the leaves copied so far, and all of them once they are."""

    leaves: list[NDArray[Any]] = field(default_factory=list[NDArray[Any]])
    given: Future[list[NDArray[Any]] | None] = field(
        default_factory=Future[list[NDArray[Any]] | None]
    )


class Learner:
    """One life after another of one island's learner; `run` is the training thread's body."""

    def __init__(
        self,
        task: Task,
        layout: Layout,
        inner: Inner,
        port: FragmentPort,
        stream: Callable[[], StreamLike],
        link: Link,
        habits: Habits,
        *,
        now_s: Callable[[], float],
    ) -> None:
        """`stream` makes a reader without leases, for each life anew; `now_s` is a steady clock."""
        self._task, self._layout, self._inner, self._port = task, layout, inner, port
        self._open_stream, self._link, self._habits, self._now_s = stream, link, habits, now_s
        self._encoder = ENCODERS[habits.encode](habits.wire_up)
        self.spoil = 1.0  # a fault plan's: what is handed in is multiplied by it
        self.drag = 1.0  # ... and so many times as long its steps take
        self._state: InnerState | None = None  # of the training thread alone, like the four below
        self._basis: dict[Fragment, Basis] = {}
        self._copying: list[jax.Array] = []  # dispatched since the last step, for others to read
        self._stream: StreamLike
        self._fed_s = self._rested_s = 0.0  # spent on data since the last step; when that was over
        self._quickest_s = math.inf  # of the steps of late
        self._distrusted = False  # is what the last life has left?
        self._structure = jax.tree.structure(jax.eval_shape(lambda: task.init(0)))
        self._mail = threading.Condition(threading.RLock())  # guards everything below
        self._now: LearnerState | None = None  # of the life that is lived
        self._todo = deque[Step | HandOver | Adopt | Take | End]()
        self._to_say = deque[Say | Want]()
        self._lives: set[Life] = set()
        self._mute: BaseException | None = None  # what broke the talking thread
        self._ended = 0  # the incarnation of the last life that is over
        self._staying = True
        self._progress, self._vitals = Progress(0, 0, Lease(0)), Vitals(float("nan"))
        self._asked: dict[Fragment, Future[Snapshot | None]] = {}
        self._adopting: set[tuple[Fragment, Version]] = set()  # by the training thread, just now
        self._offers: dict[tuple[Fragment, Version], tuple[Flat, jax.Array]] = {}
        self._donations: dict[Life, _Donation] = {}
        self._uplink: Uplink | None = None
        self._downlink: Downlink | None = None

    # --- lives ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train, life after life, until the run ends or this learner is let go.

        Errors: `Rejected` if the syncer refuses the join for good; whatever the task raises.
        """
        while (granted := self._join()) is not None:
            life = self._begin(granted)
            talker = threading.Thread(target=self._speak, args=(life,), name=f"talk {life}")
            talker.start()
            try:
                self._train()
            finally:
                self._end()
                talker.join()
            if self._mute is not None:
                raise self._mute

    @property
    def params(self) -> Params:
        """The parameters, on the devices; to be read when `run` has returned."""
        return None if self._state is None else self._state.params

    @property
    def now(self) -> LearnerState | None:
        """What is owed and said in the life that is lived; None between two lives."""
        with self._mail:
            return self._now

    def _join(self) -> Granted | None:
        """Ask for a life, again after a while where the syncer says so; None once it is let go."""
        habits = self._habits
        join = Join(habits.island, habits.group, self._layout.fingerprint, habits.region)
        while self._staying:
            match self._link.join(join):
                case Granted() as granted:
                    return granted
                case Refused(island, why, None):
                    raise Rejected(f"{island} may not join: {why}")
                case Refused(island, why, retry_s):
                    log.warning("%s may not join for %.1f s: %s", island, retry_s, why)
                    with self._mail:
                        self._mail.wait_for(lambda: not self._staying, retry_s)
        return None

    def _begin(self, granted: Granted) -> Life:
        """Start at the current versions: parameters from the public fragments, data from leases.

        The moments of the life before stay, unless the syncer distrusts them.
        """
        fragments = [Fragment(p) for p in range(len(self._layout.fragments))]
        before, self._state, self._basis = self._state, None, {}  # it need not lie beside the new
        moments = None if before is None or self._distrusted else before.opt_state
        del before
        if moments is None:
            moments = self._ask_donors(granted.donors)
        public = dict(zip(fragments, self._link.whole(fragments), strict=True))
        leaves = sew(self._layout, [flat for _, flat in public.values()])
        self._state = self._inner.start(jax.tree.unflatten(self._structure, leaves), moments)
        self._basis = {p: Basis(flat, self._anchor_of(flat)) for p, (_, flat) in public.items()}
        self._stream = stream = self._open_stream()
        for lease in granted.leases:
            stream.add(lease)
        versions, habits = [version for version, _ in public.values()], self._habits
        terms = Terms(
            habits.schedule,
            habits.overlap,
            self._port.rule is AdoptRule.CARRY,
            stream.batch_size,
            habits.lease_windows,
        )
        with self._mail:
            self._now = begun(terms, granted, versions, stream.cursor, stream.remaining)
            self._lives.add(granted.life)
            self._progress, self._vitals = self._now.progress, Vitals(float("nan"))
            self._offers = {}
            self._uplink = Uplink(granted.life, self._encoder, self._layout, habits.anchor)
            self._downlink = Downlink(public, self._catch_up)
            self._happens(Ready(stream.remaining) if self._staying else LetGo())
        return granted.life

    def _catch_up(self, p: Fragment, older: Version, newer: Version) -> Missed:
        match found := self._link.missed(p, older, newer):
            case list():
                log.info("fragment %d: %d differences fetched, after %s", p, len(found), older)
            case version, _:
                log.info("fragment %d: fetched whole, %s after %s", p, version, older)
        return found

    def _ask_donors(self, donors: Sequence[Life]) -> OptState | None:
        """The moments of the first donor that has good ones; None if none has."""
        for donor in donors:
            try:
                if (given := self._link.moments(donor)) is not None:
                    return self._inner.accept(given)
            except (Unreachable, Malformed, ValueError) as error:
                log.info("no moments from %s: %s", donor, error)
        return None

    def _end(self) -> None:
        """Nobody is kept waiting for a life that is over."""
        with self._mail:
            if self._now is not None:
                self._ended, self._now = self._now.life.incarnation, None
            for future in self._asked.values():
                future.set_result(None)
            self._asked.clear()
            for donation in self._donations.values():
                donation.given.set_result(None)
            self._donations.clear()
            self._todo.clear()
            self._to_say.clear()
            self._offers, self._uplink, self._downlink = {}, None, None
            self._mail.notify_all()

    def _happens(self, happening: Happening) -> None:
        """Take it in; whoever is to do what follows is told. Nothing follows between two lives."""
        with self._mail:
            if self._now is None:
                return
            self._now, words = happen(self._now, happening)
            self._progress = self._now.progress
            for word in words:
                match word:
                    case Say() | Want():
                        self._to_say.append(word)
                    case _:
                        self._todo.append(word)
            if words:
                self._mail.notify_all()

    # --- called by others -------------------------------------------------------------------------

    def _lives_now(self, life: Life) -> bool:
        """Is this the life that is lived? The lock is held."""
        return self._now is not None and self._now.life == life

    @property
    def vitals(self) -> tuple[int, Vitals]:
        """Of this life: inner steps, and where their time went."""
        with self._mail:
            return self._progress.steps, self._vitals

    def hand_in(
        self, life: Life, fragment: Fragment, known: Known
    ) -> tuple[HandIn, Payload] | None:
        """What this life trained on the fragment since it last handed it in or adopted it.

        `known`: what has become of its contributions to the fragment before this call. Waits for
        the next step boundary. None if there is nothing, or the life is over.
        """
        with self._mail:
            if not self._lives_now(life) or self._uplink is None:
                return None
            uplink = self._uplink
            future = self._asked.setdefault(fragment, Future())
            self._happens(Asked(fragment))
        uplink.hear(fragment, known)
        snapshot = future.result()
        return None if snapshot is None else uplink.encode(fragment, snapshot, self.spoil)

    def moments(self, life: Life) -> list[NDArray[Any]] | None:
        """This life's optimizer moments, for a learner that joins; None if the life is over.

        They are copied to the host, which takes the training thread: some leaves at each boundary,
        so that those of one leaf may be a step or two older than those of another.
        """
        with self._mail:
            if not self._lives_now(life):
                return None
            donation = self._donations.setdefault(life, _Donation())
            self._mail.notify_all()
        return donation.given.result()

    def offer(self, life: Life, publication: Publication, payload: Payload | None) -> None:
        """Take in a newer version at the next step boundary, and learn what was merged; without a
        payload, what it lacks is asked for."""
        with self._mail:
            if not self._lives_now(life) or self._uplink is None or self._downlink is None:
                return
            uplink, downlink = self._uplink, self._downlink
        for said in publication.merged:
            if said.life == life:
                uplink.settle(said, merged=True)
        if (found := downlink.follow(publication, payload)) is None:
            return
        p, (version, flat) = publication.fragment, found
        placed = self._inner.place(flat)  # which one that comes later may have done before this one
        with self._mail:
            if self._lives_now(life):
                self._offers[p, version] = flat, placed
                self._happens(Offered(p, version))
                self._forget_offers()

    def _forget_offers(self) -> None:
        """Let go of the arrays of offers that will not be adopted. The lock is held."""
        assert self._now is not None
        wanted = {(each.fragment, each.version) for each in self._todo if isinstance(each, Adopt)}
        wanted |= {(p, self._now.newest[p]) for p in self._now.news} | self._adopting
        self._offers = {key: each for key, each in self._offers.items() if key in wanted}

    def had(self, life: Life) -> bool:
        """Is this one of the lives of this learner?"""
        with self._mail:
            return life in self._lives

    def refused(self, said: ContributionId) -> None:
        """A contribution was discarded: what it took along is this learner's again."""
        with self._mail:
            uplink = self._uplink if self._lives_now(said.life) else None
        if uplink is not None:
            uplink.settle(said, merged=False)

    def cease(self, over: Void) -> None:
        """This life is over by the syncer's word; the next one begins at once."""
        with self._mail:
            if self._lives_now(over.life):
                self._happens(Ceased(over))

    def park(self, life: Life) -> None:
        """Step no more in this life; go on handing in and adopting."""
        with self._mail:
            if self._lives_now(life):
                self._happens(Parked())

    def leave(self) -> Progress:
        """End this life and begin no other; how far it came."""
        with self._mail:
            self._staying = False
            self._happens(LetGo())
            self._mail.notify_all()
            return self._progress

    def outlive(self, life: Life) -> str:
        """Return when this life, which may be about to begin, is over; with the reason."""
        with self._mail:
            self._mail.wait_for(lambda: self._ended >= life.incarnation)
            return "its learner has ended this life"

    # --- the training thread ----------------------------------------------------------------------

    def _train(self) -> None:
        """Do what there is to do, step after step, until this life is over."""
        before_s = self._rested_s = self._now_s()
        while True:
            match self._next(math.inf):
                case Step(held):
                    waited_s = self._now_s() - self._rested_s
                    if held:
                        before_s += waited_s
                    else:
                        self._fed_s += waited_s
                    before_s = self._step(before_s)
                case HandOver() | Adopt() | Take() as word:
                    self._serve(word)
                case End(distrusted):
                    self._distrusted = distrusted
                    return
                case None:
                    return  # nobody speaks for it any more

    def _next(self, for_s: float) -> Step | HandOver | Adopt | Take | End | None:
        """Wait so long for something to do, giving moments away meanwhile; None if nothing came, or
        the talking thread has broken."""
        until_s = self._now_s() + for_s
        while True:
            with self._mail:
                left_s = None if math.isinf(until_s) else until_s - self._now_s()
                self._mail.wait_for(lambda: self._todo or self._donations or self._mute, left_s)
                if self._mute is not None:
                    return None
                if self._todo:
                    return self._todo.popleft()
            if self._now_s() >= until_s:
                return None
            self._donate()

    def _step(self, before_s: float) -> float:
        """One inner step, and what is due at its end; `before_s`: when the step before ended.

        Returns when this one did. All the time between the two is accounted for: what was neither
        computing nor data nor idling was spent talking. So is what the devices still have to do
        for hand-ins, adoptions and donations when the step could begin: it would come before it.
        """
        assert self._state is not None
        began_s = self._now_s()
        with self._mail:
            assert self._now is not None
            clock = self._now.clock
        try:
            batch = self._stream.next()
        except Starved:
            self._happens(Ready(self._stream.remaining))
            return before_s
        finally:
            self._fed_s += self._now_s() - began_s
        jax.block_until_ready((self._state, self._copying))
        self._copying = []
        began_s = self._now_s()
        self._state, measures = self._inner.step(self._state, batch, clock)
        loss = float(measures.loss)  # waits for the devices
        computed_s = self._now_s() - began_s
        self._quickest_s = min(computed_s, PACE_DRIFT * self._quickest_s)
        slowed = self.drag / self._habits.speed
        idle_s = slowed * self._quickest_s - computed_s if slowed > 1 else 0.0
        tokens = operator.index(self._task.tokens(batch))
        self._happens(Stepped(tokens, self._stream.cursor, self._stream.remaining))
        self._serve_until(self._now_s())
        self._donate()
        idled_s = max(0.0, idle_s, before_s + self._habits.step_s - self._now_s())
        if idled_s > 0:
            self._serve_until(self._now_s() + idled_s)
        self._rested_s = ended_s = self._now_s()
        took_s, fed_s, self._fed_s = ended_s - before_s, self._fed_s, 0.0
        with self._mail:
            self._vitals = replace(
                self._vitals,
                loss=loss,
                computing_s=self._vitals.computing_s + computed_s,
                talking_s=self._vitals.talking_s + took_s - computed_s - fed_s - idled_s,
                data_s=self._vitals.data_s + fed_s,
                idle_s=self._vitals.idle_s + idled_s,
            )
            self._happens(Rested(took_s))
        return ended_s

    def _serve_until(self, until_s: float) -> None:
        """Do what there is to do at a boundary, and what comes until then; all but the end."""
        while (word := self._next(until_s - self._now_s())) is not None:
            if isinstance(word, HandOver | Adopt | Take):
                self._serve(word)
            else:
                with self._mail:
                    self._todo.appendleft(word)
                return

    def _donate(self) -> None:
        """Go on copying moments to the host for whoever asked, for part of a step's time."""
        with self._mail:
            donations = dict(self._donations)
            step_s = 0.0 if self._now is None else self._now.step_s
        for life, donation in donations.items():
            assert self._state is not None
            until_s, given = self._now_s() + DONATING_SHARE * step_s, donation.leaves
            for leaf in self._inner.moments(self._state, after=len(given)):
                given.append(leaf)
                if self._now_s() >= until_s:
                    break
            else:
                with self._mail:
                    self._donations.pop(life).given.set_result(given)

    def _serve(self, word: HandOver | Adopt | Take) -> None:
        match word:
            case Take(lease):
                self._stream.add(lease)
                self._happens(Fed(self._stream.remaining))
            case HandOver(p):
                snapshot = None if word.said is None else self._taken(word)
                with self._mail:  # whoever asked is forgotten once answered: if not here, by `_end`
                    self._asked.pop(p).set_result(snapshot)
            case Adopt(p, version):
                with self._mail:
                    offer, self._adopting = self._offers[p, version], {(p, version)}
                self._adopt(p, *offer)
                with self._mail:
                    self._adopting = set()
                    self._offers.pop((p, version))

    def _taken(self, word: HandOver) -> Snapshot:
        assert self._state is not None
        p = word.fragment
        flat, basis = self._port.take(self._state.params, p), self._basis[p]
        self._copying.append(flat)
        self._basis[p] = Basis(basis.public, flat)
        return Snapshot(flat, word, basis)

    def _adopt(self, p: Fragment, flat: Flat, placed: jax.Array) -> None:
        assert self._state is not None
        carries = self._port.rule is AdoptRule.CARRY
        origin = self._inner.place(self._basis[p].origin) if carries else placed
        params = self._port.put(self._state.params, p, placed, origin)
        self._state = replace(self._state, params=params)
        self._basis[p] = Basis(flat, placed if self._habits.encode == "device" else flat)

    def _anchor_of(self, flat: Flat) -> Numbers:
        """Where deltas will be counted from."""
        return self._inner.place(flat) if self._habits.encode == "device" else flat

    # --- the talking thread -----------------------------------------------------------------------

    def _speak(self, life: Life) -> None:
        """Run the talking thread; its failure is the learner's, since nobody would hear of it any
        more."""
        try:
            self._talk(life)
        except BaseException as error:  # noqa: BLE001 - raised where the training thread ends
            with self._mail:
                self._mute = error
                self._mail.notify_all()

    def _talk(self, life: Life) -> None:
        """Say what there is to say, one message at a time, and tell what came of it."""
        while True:
            with self._mail:
                self._mail.wait_for(lambda: self._to_say or not self._lives_now(life), HEARTBEAT_S)
                if not self._lives_now(life):
                    return
                word = self._to_say.popleft() if self._to_say else None
                vitals = self._vitals
            if word is None:
                self._happens(Beat())
                continue
            try:
                match word:
                    case Say(report, adopted):
                        answer = self._link.report(report, vitals, adopted)
                    case Want(event):
                        answer = self._link.lease(event)
            except Unreachable:
                self._happens(Unheard())
                continue
            with self._mail:
                if self._lives_now(life):
                    self._happens(Heard(answer))
