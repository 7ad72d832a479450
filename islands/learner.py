"""The learner: trains, reports, hands in, adopts, recovers.

One thread trains and owns the parameters; it waits for nobody, except with `overlap = 0`, the
lock-step mode. Others call `hand_in` and `offer`: they leave a wish, the training thread serves it
at its next step boundary, and copying, encoding and decoding stay with the caller. A third thread
speaks to the syncer. What is said and heard is in docs/protocol.md.
"""

from __future__ import annotations

import logging
import math
import operator
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
from numpy.typing import NDArray
from optax import OptState

from coordinator.codec import Payload, Wire
from coordinator.errors import Malformed, Rejected, Unreachable
from coordinator.fragments import Flat, Layout, sew
from coordinator.protocol import (
    Adopted,
    Anchor,
    Answer,
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Island,
    Join,
    Known,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Progress,
    Publication,
    Refused,
    Region,
    Report,
    Version,
    Vitals,
    Void,
)
from coordinator.schedule import Schedule
from islands.adopt import AdoptRule, FragmentPort
from islands.corpus import Starved
from islands.encoder import ENCODERS, Numbers, Where
from islands.exchange import Downlink, Missed, Public, Snapshot, Track, Uplink
from islands.inner import Inner, InnerState
from islands.task import Batch, Params, StreamLike, Task

log = logging.getLogger("archipelago.learner")

HEARTBEAT_S = 1.0
"""A learner that has nothing new to say says so this often."""
STEP_SMOOTHING = 0.2
"""Weight of the newest step in the moving average of the time that a step takes."""
PACE_DRIFT = 1.01
"""A slowed learner keeps the pace of its quickest step, which it forgets by this factor a step: if
others take its cores for a while it idles less, and not more."""
DONATING_SHARE = 0.5
"""Of a step's time, at most, a donor spends at one boundary on copying its moments to the host, or
on one leaf of them: meanwhile it does not train. A copy on the devices, made at once, would take no
time, but as much memory again as the moments, which a device that is full does not have."""


class Link(Protocol):
    """The way to the coordinator. Calls may take long; they raise `Unreachable` when they fail.

    A report brings along what was adopted since the one before: each call costs both ends more than
    what is said in it.
    """

    def join(self, event: Join) -> Granted | Refused: ...
    def report(
        self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> Answer | Void: ...
    def lease(self, event: LeaseWanted) -> LeaseGranted | Void: ...
    def left(self, event: Left) -> None: ...
    def whole(self, fragments: Sequence[Fragment]) -> list[Public]: ...
    def missed(self, p: Fragment, older: Version, newer: Version) -> Missed: ...
    def moments(self, donor: Life) -> list[NDArray[Any]] | None: ...


@dataclass(frozen=True, slots=True)
class Habits:
    """How a learner works; constant over the run.

    `overlap`: 0 = wait for adoption at each due point. `speed`: below 1 it idles between steps, so
    that one takes 1 / `speed` of its quickest. `step_s`: ... so that none takes less than this.
    `encode`: where its deltas are encoded, and their anchors kept.
    `lease_windows`: it asks for more data when less than this is left, or less than a batch.
    """

    island: Island
    group: str
    wire_up: Wire
    schedule: Schedule
    overlap: int
    lease_windows: int
    speed: float
    step_s: float
    anchor: Anchor
    encode: Where
    region: Region | None


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
        self._state: InnerState | None = None  # of the training thread alone, like the tracks
        self._tracks: dict[Fragment, Track] = {}
        self._copying: list[jax.Array] = []  # dispatched since the last step, for others to read
        self._stream: StreamLike | None = None
        self._fed_s = 0.0  # spent on data since the last step
        self._quickest_s = math.inf  # of the steps of late
        self._structure = jax.tree.structure(jax.eval_shape(lambda: task.init(0)))
        self._mail = threading.Condition()  # guards everything below
        self._life: Life | None = None
        self._lives: set[Life] = set()
        self._mute: BaseException | None = None  # what broke the talking thread
        self._ended = 0  # the incarnation of the last life that is over
        self._over: Void | None = None
        self._stepping = self._staying = True
        self._offset, self._step_s = 0, 0.0
        self._progress, self._vitals = Progress(0, 0, Lease(0)), Vitals(float("nan"))
        self._asks: dict[Fragment, Future[Snapshot | None]] = {}
        self._donations: dict[Life, _Donation] = {}
        self._news: dict[Fragment, tuple[Version, Flat, jax.Array]] = {}
        self._newest: dict[Fragment, Version] = {}  # that was news in this life, or its beginning
        self._said: list[Adopted] = []
        self._leases: list[Lease] = []
        self._hungry = self._spoke = False
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
        distrusted = self._over is not None and self._over.distrusted
        before, self._state, self._tracks = self._state, None, {}  # it need not lie beside the new
        moments = None if before is None or distrusted else before.opt_state
        del before
        if moments is None:
            moments = self._ask_donors(granted.donors)
        public = dict(zip(fragments, self._link.whole(fragments), strict=True))
        leaves = sew(self._layout, [flat for _, flat in public.values()])
        self._state = self._inner.start(jax.tree.unflatten(self._structure, leaves), moments)
        self._tracks = {
            p: Track.begin(*known, 0, 0, self._anchor_of(known[1])) for p, known in public.items()
        }
        self._stream = self._open_stream()
        for lease in granted.leases:
            self._stream.add(lease)
        with self._mail:
            self._life, self._offset, self._over = granted.life, granted.offset, None
            self._lives.add(granted.life)
            self._stepping = self._staying  # what stopped the life before may be forgotten
            self._progress = Progress(0, 0, self._stream.cursor)
            self._vitals = Vitals(float("nan"))
            self._news, self._said, self._leases = {}, [], []
            self._newest = {p: version for p, (version, _) in public.items()}
            self._uplink = Uplink(granted.life, self._encoder, self._layout, self._habits.anchor)
            self._downlink = Downlink(public, self._catch_up)
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
            if self._life is not None:
                self._ended, self._life = self._life.incarnation, None
            for future in self._asks.values():
                future.set_result(None)
            self._asks.clear()
            for donation in self._donations.values():
                donation.given.set_result(None)
            self._donations.clear()
            self._news, self._uplink, self._downlink = {}, None, None
            self._mail.notify_all()

    def _alive(self) -> bool:
        return self._staying and self._over is None and self._mute is None

    # --- called by others -------------------------------------------------------------------------

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
            if self._life != life or self._uplink is None:
                return None
            uplink = self._uplink
            future = self._asks.setdefault(fragment, Future())
            self._mail.notify_all()
        uplink.hear(fragment, known)
        snapshot = future.result()
        return None if snapshot is None else uplink.encode(fragment, snapshot, self.spoil)

    def moments(self, life: Life) -> list[NDArray[Any]] | None:
        """This life's optimizer moments, for a learner that joins; None if the life is over.

        They are copied to the host, which takes the training thread: some leaves at each boundary,
        so that those of one leaf may be a step or two older than those of another.
        """
        with self._mail:
            if self._life != life:
                return None
            donation = self._donations.setdefault(life, _Donation())
            self._mail.notify_all()
        return donation.given.result()

    def offer(self, life: Life, publication: Publication, payload: Payload | None) -> None:
        """Take in a newer version at the next step boundary, and learn what was merged; without a
        payload, what it lacks is asked for."""
        with self._mail:
            if self._life != life or self._uplink is None or self._downlink is None:
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
            if self._life == life and self._newest[p] < version:
                self._newest[p], self._news[p] = version, (version, flat, placed)
                self._mail.notify_all()

    def had(self, life: Life) -> bool:
        """Is this one of the lives of this learner?"""
        with self._mail:
            return life in self._lives

    def refused(self, said: ContributionId) -> None:
        """A contribution was discarded: what it took along is this learner's again."""
        with self._mail:
            uplink = self._uplink if self._life == said.life else None
        if uplink is not None:
            uplink.settle(said, merged=False)

    def cease(self, over: Void) -> None:
        """This life is over by the syncer's word; the next one begins at once."""
        with self._mail:
            if self._life == over.life:
                self._over = over
                self._mail.notify_all()

    def park(self, life: Life) -> None:
        """Step no more in this life; go on handing in and adopting."""
        with self._mail:
            if self._life == life:
                self._stepping = False
                self._mail.notify_all()

    def leave(self) -> Progress:
        """End this life and begin no other; how far it came."""
        with self._mail:
            self._stepping = self._staying = False
            self._mail.notify_all()
            return self._progress

    def outlive(self, life: Life) -> str:
        """Return when this life, which may be about to begin, is over; with the reason."""
        with self._mail:
            self._mail.wait_for(lambda: self._ended >= life.incarnation)
            return "its learner has ended this life"

    # --- the training thread ----------------------------------------------------------------------

    def _train(self) -> None:
        before_s = self._now_s()
        while self._alive():
            if not self._stepping:
                self._wait(lambda: False)
                before_s = self._now_s()
                continue
            if (batch := self._feed()) is None:
                continue
            before_s = self._step(batch, before_s)
            if self._habits.overlap == 0:
                self._await_adoption()
                before_s = self._now_s()

    def _feed(self) -> Batch | None:
        """The next batch; waits for a lease if there must be one. None when it is too late."""
        assert self._stream is not None
        while self._alive() and self._stepping:
            with self._mail:
                for lease in self._leases:
                    self._stream.add(lease)
                self._leases = []
                wanted = max(self._habits.lease_windows, self._stream.batch_size)
                self._hungry = self._stream.remaining < wanted
                if self._hungry:
                    self._mail.notify_all()
            began_s = self._now_s()
            try:
                return self._stream.next()
            except Starved:
                self._wait(lambda: bool(self._leases))
            finally:
                self._fed_s += self._now_s() - began_s
        return None

    def _step(self, batch: Batch, before_s: float) -> float:
        """One inner step, and what is due at its end; `before_s`: when the step before ended.

        Returns when this one did. All the time between the two is accounted for: what was neither
        computing nor data nor idling was spent talking. So is what the devices still have to do
        for hand-ins, adoptions and donations when the step could begin: it would come before it.
        """
        assert self._state is not None
        assert self._stream is not None
        clock = self._progress.steps + self._offset
        jax.block_until_ready((self._state, self._copying))
        self._copying = []
        began_s = self._now_s()
        self._state, measures = self._inner.step(self._state, batch, clock)
        loss = float(measures.loss)  # waits for the devices
        computed_s = self._now_s() - began_s
        self._quickest_s = min(computed_s, PACE_DRIFT * self._quickest_s)
        slowed = self.drag / self._habits.speed
        idle_s = slowed * self._quickest_s - computed_s if slowed > 1 else 0.0
        with self._mail:
            self._progress = Progress(
                self._progress.steps + 1,
                self._progress.tokens + operator.index(self._task.tokens(batch)),
                self._stream.cursor,
            )
        self._boundary()
        idled_s = max(0.0, idle_s, before_s + self._habits.step_s - self._now_s())
        if idled_s > 0:
            self._wait(lambda: False, timeout_s=idled_s)
        with self._mail:
            ended_s = self._now_s()
            took_s, fed_s, self._fed_s = ended_s - before_s, self._fed_s, 0.0
            known = self._step_s
            self._step_s = took_s if known == 0 else known + STEP_SMOOTHING * (took_s - known)
            self._vitals = replace(
                self._vitals,
                loss=loss,
                computing_s=self._vitals.computing_s + computed_s,
                talking_s=self._vitals.talking_s + took_s - computed_s - fed_s - idled_s,
                data_s=self._vitals.data_s + fed_s,
                idle_s=self._vitals.idle_s + idled_s,
            )
            if self._is_news():
                self._spoke = True
                self._mail.notify_all()
        return ended_s

    def _is_news(self) -> bool:
        """Must the syncer hear of this step at once? It acts on a learner's first one, and when
        clocks pass due points; of all the others it hears with these, or by the heartbeat."""
        clock = self._progress.steps + self._offset
        due = self._habits.schedule.due(after=clock - 1, upto=clock)
        return bool(due) or self._progress.steps == 1

    def _boundary(self) -> None:
        """Serve what was asked for and what came in: hand in first, so that nothing is overwritten
        that was asked for."""
        with self._mail:
            ready, donations = self._servable(), [*self._donations]
            news, self._news = self._news, {}
        for p in ready:  # whoever asked is forgotten when he is answered: if this fails, by `_end`
            snapshot = self._hand_over(p)
            with self._mail:
                self._asks.pop(p).set_result(snapshot)
        for p, newest in news.items():
            self._adopt(p, *newest)
        for life in donations:
            self._donate(life)

    def _donate(self, life: Life) -> None:
        """Go on copying this life's moments to the host, for part of a step's time."""
        assert self._state is not None
        leaves = self._donations[life].leaves
        until_s = self._now_s() + DONATING_SHARE * self._step_s
        for leaf in self._inner.moments(self._state, after=len(leaves)):
            leaves.append(leaf)
            if self._now_s() >= until_s:
                return
        with self._mail:
            self._donations.pop(life).given.set_result(leaves)

    def _servable(self) -> list[Fragment]:
        """Fragments asked for that have something to hand in, or never will have."""
        steps = self._progress.steps
        return [p for p in self._asks if not self._stepping or self._tracks[p].from_step < steps]

    def _wished(self) -> bool:
        """Is there anything to do at this boundary?"""
        return bool(self._news or self._donations or self._servable())

    def _hand_over(self, p: Fragment) -> Snapshot | None:
        assert self._state is not None
        track, progress = self._tracks[p], self._progress
        if track.from_step == progress.steps:
            return None
        flat = self._port.take(self._state.params, p)
        self._copying.append(flat)
        self._tracks[p] = replace(
            track, origin=flat, from_step=progress.steps, from_tokens=progress.tokens
        )
        return Snapshot(flat, track, progress)

    def _adopt(self, p: Fragment, version: Version, flat: Flat, placed: jax.Array) -> None:
        assert self._state is not None
        assert self._life is not None
        track, progress = self._tracks[p], self._progress
        carries = self._port.rule is AdoptRule.CARRY
        origin = self._inner.place(track.origin) if carries else placed
        params = self._port.put(self._state.params, p, placed, origin)
        self._state = replace(self._state, params=params)
        if carries:
            begun = track.from_step, track.from_tokens
            from_step, tokens = progress.steps, 0
        else:
            begun = progress.steps, progress.tokens
            from_step, tokens = track.from_step, progress.tokens - track.from_tokens
        anchor = placed if self._habits.encode == "device" else flat
        self._tracks[p] = Track.begin(version, flat, *begun, anchor)
        with self._mail:
            self._said.append(Adopted(self._life, p, version, from_step, tokens, progress))
            self._mail.notify_all()

    def _anchor_of(self, flat: Flat) -> Numbers:
        """Where deltas will be counted from."""
        return self._inner.place(flat) if self._habits.encode == "device" else flat

    def _await_adoption(self) -> None:
        """Lock-step mode: go on only with newer versions of what is due at this step."""
        clock = self._progress.steps + self._offset
        due = self._habits.schedule.due(after=clock - 1, upto=clock)
        before = {p: self._tracks[p].base for p in due}

        def adopted() -> bool:
            return all(self._tracks[p].base != base for p, base in before.items())

        while self._alive() and self._stepping and not adopted():
            self._wait(adopted)

    def _wait(self, enough: Callable[[], bool], timeout_s: float = HEARTBEAT_S) -> None:
        """Idle until `enough`, or the life ends, or the time is over, serving whatever comes."""
        until_s = self._now_s() + timeout_s
        while True:
            with self._mail:
                left_s = until_s - self._now_s()
                self._mail.wait_for(
                    lambda: enough() or self._wished() or not self._alive(),
                    left_s,
                )
            self._boundary()
            if enough() or not self._alive() or self._now_s() >= until_s:
                return

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
        """Tell the syncer what happened, one message at a time; what comes meanwhile is joined."""
        while True:
            with self._mail:
                self._mail.wait_for(lambda: self._has_news(life), HEARTBEAT_S)
                if self._life != life:
                    return
                said, self._said, self._spoke = self._said, [], False
                report = Report(life, self._progress, self._step_s)
                vitals, hungry = self._vitals, self._hungry
            try:
                self._hear(self._link.report(report, vitals, said))
                if hungry:
                    self._hear(self._link.lease(LeaseWanted(life)))
            except Unreachable:
                with self._mail:
                    self._said = said + self._said  # saying it twice does no harm
                    self._mail.wait_for(lambda: self._life != life, HEARTBEAT_S)

    def _has_news(self, life: Life) -> bool:
        """What was adopted can wait for the next report, if steps go on."""
        parked = self._said and not self._stepping
        return bool(self._spoke or parked or self._hungry or self._life != life)

    def _hear(self, answer: Answer | LeaseGranted | Void) -> None:
        match answer:
            case Void():
                self.cease(answer)
            case Answer():
                with self._mail:
                    self._spoke = self._spoke or answer.offset != self._offset
                    self._offset = answer.offset
                    if answer.stopping:
                        self._stepping = False
                    self._mail.notify_all()
            case LeaseGranted():
                with self._mail:
                    self._leases.append(answer.lease)
                    self._hungry = False
                    self._mail.notify_all()
