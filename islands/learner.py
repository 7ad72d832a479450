"""The learner: trains, reports, hands in, adopts, recovers.

One thread trains and owns the parameters; it waits for nobody, except with `overlap = 0`, the
lock-step mode. Others call `hand_in` and `offer`: they tell `learner_state` what has happened, the
training thread does what follows at its next step boundary, and copying, encoding and decoding stay
with the caller. A third thread speaks to the syncer. What is said and heard is in docs/protocol.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import jax
from numpy.typing import NDArray
from optax import OptState

from coordinator.codec import Sent, decode
from coordinator.errors import Malformed, Rejected, Unreachable
from coordinator.fragments import Flat, Layout, sew
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Join,
    Known,
    Life,
    Progress,
    Publication,
    Refused,
    Version,
    Vitals,
    Void,
)
from islands.adopt import FragmentPort
from islands.encoder import ENCODERS
from islands.exchange import Downlink, Missed, Uplink
from islands.inner import Inner, Share
from islands.lead import Lead, agreed
from islands.learner_life import LearnerState, begun
from islands.learner_words import (
    Asked,
    Ceased,
    LetGo,
    Offered,
    Parked,
    Ready,
    Settled,
)
from islands.link import Habits, Link
from islands.mailbox import Donation, Mailbox, Offer
from islands.moments import Sharing
from islands.orders import Begin, Fate, Feed, News, Order, Over, Start
from islands.talker import speak
from islands.task import Params, StreamLike, Task
from islands.trainer import Trainer

log = logging.getLogger("archipelago.learner")


def _nobody(order: Order) -> None:
    """Of an island of one host: there is nobody to be told."""


class Learner:
    """One life after another of one island's learner; `run` is the training thread's body."""

    def __init__(
        self,
        task: Task,
        layout: Layout,
        inner: Inner,
        port: FragmentPort,
        sharing: Sharing | None,
        stream: Callable[[], StreamLike],
        link: Link,
        habits: Habits,
        *,
        now_s: Callable[[], float],
        lead: Lead[Order] | None = None,
    ) -> None:
        """`stream` makes a reader without leases, for each life anew; `now_s` is a steady clock.
        `sharing`: of first moments; None: they stay each island's own. `lead`: to the other hosts,
        if the island has any."""
        self._task, self._layout, self._inner, self._port = task, layout, inner, port
        self._sharing = sharing
        self._open_stream, self._link, self._habits = stream, link, habits
        self._encoder = ENCODERS[habits.encode](habits.wire_up)
        wire = habits.wire_moments
        self._moments_encoder = None if wire is None else ENCODERS[habits.encode](wire)
        self.spoil = 1.0  # a fault plan's: what is handed in is multiplied by it
        self._structure = jax.tree.structure(task.shapes)
        self._mail = Mailbox(now_s)
        self._lead = lead
        self._awaited: dict[tuple[Fragment, Version], Offer] = {}  # by other hosts
        tell = _nobody if lead is None else lead.tell
        self._trainer = Trainer(task, inner, port, sharing, habits, self._mail, now_s, tell)
        self._distrusted = False  # is what the last life has left?

    # --- lives ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train, life after life, until the run ends or this learner is let go.

        Errors: `Rejected` if the syncer refuses the join for good; whatever the task raises.
        """
        while (granted := self._join()) is not None:
            if (life := self._begin(granted)) is None:
                continue
            talker = threading.Thread(
                target=speak, args=(self._mail, self._link, life), name=f"talk {life}"
            )
            talker.start()
            try:
                self._distrusted = self._trainer.train()
            finally:
                self._mail.end()
                talker.join()
            if self._lead is not None:
                self._lead.tell(Over())
            if self._mail.mute is not None:
                raise self._mail.mute

    @property
    def params(self) -> Params:
        """The parameters, on the devices; to be read when `run` has returned."""
        return self._trainer.params

    @property
    def now(self) -> LearnerState | None:
        """What is owed and said in the life that is lived; None between two lives."""
        with self._mail.lock:
            return self._mail.now

    def _join(self) -> Granted | None:
        """Ask for a life, again after a while where the syncer says so; None once it is let go."""
        habits = self._habits
        join = Join(habits.island, habits.group, self._layout.fingerprint, habits.region)
        while self._mail.staying:
            match self._link.join(join):
                case Granted() as granted:
                    return granted
                case Refused(island, why, None):
                    raise Rejected(f"{island} may not join: {why}")
                case Refused(island, why, retry_s):
                    log.warning("%s may not join for %.1f s: %s", island, retry_s, why)
                    with self._mail.lock:
                        self._mail.lock.wait_for(lambda: not self._mail.staying, retry_s)
        return None

    def _begin(self, granted: Granted) -> Life | None:
        """Start at the current versions: parameters from the public fragments, data from leases.

        The moments of the life before stay, unless the syncer distrusts them. Without them it takes
        those of a donor, or what is shared of first moments, where they are. None if this life was
        over before it had begun.
        """
        fragments = [Fragment(p) for p in range(len(self._layout.fragments))]
        if (whole := self._link.whole(fragments)) is None:
            return None
        public = dict(zip(fragments, whole, strict=True))
        moments = self._trainer.moments()
        if self._distrusted:
            moments = None  # nor do they
        kept, given = moments is not None, None
        shared: dict[Fragment, Flat] = {}
        if moments is None and self._sharing is not None:
            if (found := self._ask_shards(fragments)) is None:
                return None
            shared = found
        elif moments is None:
            moments = given = self._ask_donors(granted.donors)
        downlink = Downlink(public, self._catch_up)
        if self._lead is not None:
            self._lead.begin(partial(self._offered, granted.life))
            self._lead.tell(Begin(granted.life, kept, given is not None))
            start = Start(granted.offset, tuple(shared))
            public = agreed(self._lead, public, downlink, start)
        flats = {p: flat for p, (_, flat) in public.items()}
        params = None
        if self._lead is None:
            params = jax.tree.unflatten(self._structure, sew(self._layout, [*flats.values()]))
        stream, habits = self._open_stream(), self._habits
        self._trainer.begin(params, moments, flats, shared, granted.offset, stream)
        for lease in granted.leases:
            if self._lead is not None:
                self._lead.tell(Feed(lease))
            stream.add(lease)
        terms = habits.terms(self._port.rule, stream.batch_size)
        versions = [version for version, _ in public.values()]
        state = begun(terms, granted, versions, stream.cursor, stream.remaining)
        uplink = Uplink(
            granted.life, self._encoder, self._layout, habits.anchor, self._moments_encoder
        )
        with self._mail.lock:
            self._mail.begin(state, uplink, downlink)
            self._awaited = {}
            self._mail.happens(Ready(stream.remaining) if self._mail.staying else LetGo())
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
                    moments = self._inner.accept(given)
                    log.info("moments of %s", donor)
                    return moments
            except (Unreachable, Malformed, ValueError) as error:
                log.info("no moments from %s: %s", donor, error)
        return None

    def _ask_shards(self, fragments: Sequence[Fragment]) -> dict[Fragment, Flat] | None:
        """The mean of the islands' first moments, of those fragments of which there is one; None
        if this life was over before they had come."""
        if (found := self._link.mean_moments(fragments)) is None:
            return None
        owns = {p: self._inner.devices.own(self._layout.sizes[p]) for p in found}
        return {p: decode(each, owns[p].stop - owns[p].start) for p, each in found.items()}

    # --- called by others -------------------------------------------------------------------------

    @property
    def vitals(self) -> tuple[int, Vitals]:
        """Of this life: inner steps, and where their time went."""
        with self._mail.lock:
            return self._mail.progress.steps, self._mail.vitals

    def hand_in(self, life: Life, fragment: Fragment, known: Known) -> tuple[HandIn, Sent] | None:
        """What this life trained on the fragment since it last handed it in or adopted it.

        `known`: what has become of its contributions to the fragment before this call. Waits for
        the next step boundary. None if there is nothing, or the life is over.
        """
        with self._mail.lock:
            if not self._mail.is_lived(life) or self._mail.uplink is None:
                return None
            uplink = self._mail.uplink
        held = known.held if uplink.hear(fragment, known) else None
        with self._mail.lock:
            if not self._mail.is_lived(life):
                return None
            if (future := self._mail.asked.get(fragment)) is None:  # else both hear the same answer
                future = self._mail.asked[fragment] = Future()
                self._mail.happens(Asked(fragment, held))
        snapshot = future.result()
        return None if snapshot is None else uplink.encode(fragment, snapshot, self.spoil)

    def moments(self, life: Life) -> list[NDArray[Any]] | None:
        """This life's optimizer moments, for a learner that joins: of each leaf what this host has
        of it (`Inner.shares`), in flat form. None if the life is over.

        They are copied to the host, which takes the training thread: some leaves at each boundary,
        so that those of one leaf may be a step or two older than those of another. The other hosts
        of the island copy theirs at the same boundaries.
        """
        with self._mail.lock:
            if not self._mail.is_lived(life):
                return None
            donation = self._mail.donations.setdefault(life, Donation())
            self._mail.lock.notify_all()
        return donation.given.result()

    @property
    def shares(self) -> Sequence[Share]:
        """What this host has of each leaf of its optimizer's moments."""
        return self._inner.shares

    def copied(self, life: Life) -> tuple[int, float]:
        """How many leaves of its moments this life has copied for whoever asked, and how long its
        steps take, in seconds."""
        with self._mail.lock:
            donation, now = self._mail.donations.get(life), self._mail.now
            step_s = 0.0 if now is None else now.step_s
            return 0 if donation is None else len(donation.leaves), step_s

    def offer(self, life: Life, publication: Publication, payload: Sent | None) -> None:
        """Take in a newer version at the next step boundary, and learn what was merged; without a
        payload, what it lacks is asked for."""
        with self._mail.lock:
            if (
                not self._mail.is_lived(life)
                or self._mail.uplink is None
                or self._mail.downlink is None
            ):
                return
            uplink, downlink = self._mail.uplink, self._mail.downlink
        if self._lead is not None:
            self._lead.tell(News(life, publication))
        uplink.settle_merged(publication)
        self._settled(life, publication.merged)
        if (found := downlink.follow(publication, payload)) is None:
            return
        p, (version, flat) = publication.fragment, found
        mean = None if self._sharing is None else downlink.take_mean(p, version)
        # which one that comes later may have done before this one
        size = self._port.size(p)
        placed = self._inner.place_flat(flat, size)
        shared = None if mean is None else self._inner.place_flat(mean, size)
        with self._mail.lock:
            self._awaited[p, version] = Offer(flat, placed, shared)
        if self._lead is None:
            self._offered(life, p, version, mean=True)
        else:
            self._lead.placed(p, version, mean=shared is not None)

    def _offered(self, life: Life, p: Fragment, version: Version, mean: bool) -> None:
        """All hosts of the island could put this version in place; `mean`: with what came of first
        moments."""
        with self._mail.lock:
            offer = self._awaited.pop((p, version), None)
            if offer is not None and not mean:
                offer = offer._replace(mean=None)
            if self._lead is not None:  # of older ones some host may not have heard, nor ever will
                late = [key for key in self._awaited if key[0] == p and key[1] < version]
                for key in late:
                    del self._awaited[key]
            if offer is not None and self._mail.is_lived(life):
                self._mail.offers[p, version] = offer
                self._mail.happens(Offered(p, version))
                self._mail.forget_offers()

    def had(self, life: Life) -> bool:
        """Is this one of the lives of this learner?"""
        with self._mail.lock:
            return life in self._mail.lives

    def refused(self, said: ContributionId) -> None:
        """A contribution was discarded: what it took along is this learner's again."""
        if self._lead is not None:
            self._lead.tell(Fate(said))
        with self._mail.lock:
            uplink = self._mail.uplink if self._mail.is_lived(said.life) else None
        if uplink is not None:
            uplink.settle(said, merged=False)
            self._settled(said.life, (said,))

    def _settled(self, life: Life, said: tuple[ContributionId, ...]) -> None:
        with self._mail.lock:
            if self._mail.is_lived(life):
                self._mail.happens(Settled(said))

    def cease(self, over: Void) -> None:
        """This life is over by the syncer's word; the next one begins at once."""
        with self._mail.lock:
            if self._mail.is_lived(over.life):
                self._mail.happens(Ceased(over))

    def park(self, life: Life) -> None:
        """Step no more in this life; go on handing in and adopting."""
        with self._mail.lock:
            if self._mail.is_lived(life):
                self._mail.happens(Parked())

    def leave(self) -> Progress:
        """End this life and begin no other; how far it came."""
        with self._mail.lock:
            self._mail.staying = False
            self._mail.happens(LetGo())
            self._mail.lock.notify_all()
            return self._mail.progress

    def outlive(self, life: Life) -> str:
        """Return when this life, which may be about to begin, is over; with the reason."""
        with self._mail.lock:
            self._mail.lock.wait_for(lambda: self._mail.ended >= life.incarnation)
            return "its learner has ended this life"

    @property
    def drag(self) -> float:
        """So many times as long its steps take, for a fault plan."""
        return self._trainer.drag

    @drag.setter
    def drag(self, factor: float) -> None:
        self._trainer.drag = factor
