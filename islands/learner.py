"""The learner: trains, reports, hands in, adopts, recovers.

One thread trains and owns the parameters; it waits for nobody, except with `overlap = 0`, the
lock-step mode. Others call `hand_in` and `offer`: they tell `learner_state` what has happened, the
training thread does what follows at its next step boundary, and copying, encoding and decoding stay
with the caller. A third thread speaks to the syncer. What is said and heard is in docs/protocol.md.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
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
from islands.exchange import Downlink, Missed, Public, Uplink
from islands.hosts.lead import Lead, agreed
from islands.hosts.orders import Begin, Fate, Feed, News, Order, Over, Start
from islands.hosts.publication_lanes import Following
from islands.inner import Inner, Share
from islands.learner_life import LearnerState, begun, donors_in_turn
from islands.learner_messages import Ceased, Parked, Ready, Settled
from islands.link import AGAIN_S, Habits, Link
from islands.mailbox import Donation, Ends, Mailbox, Offer
from islands.message_thread import speak
from islands.moments import Sharing
from islands.task import Params, StreamLike, Task
from islands.trainer import Trainer

log = logging.getLogger("archipelago.learner")


def _nobody(order: Order) -> None:
    """Do nothing: an island of one host has no others to tell."""


def _in_short(error: BaseException) -> str:
    """Return an exception's class, its message, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


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
                target=speak, args=(self._mail, self._link, life), name=f"talk {life}", daemon=True
            )
            talker.start()
            try:
                self._distrusted = self._trainer.train()
                if (broken := self._mail.broken) is not None:
                    raise broken
            except BaseException as error:  # the talker may be in a call for long: not waited for
                self._mail.end(f"its learner broke: {_in_short(error)}")
                raise
            self._mail.end()
            talker.join()
            if self._lead is not None:
                self._lead.tell(Over())
            if (broken := self._mail.broken) is not None:
                raise broken

    @property
    def params(self) -> Params:
        """The parameters, on the devices; to be read when `run` has returned."""
        return self._trainer.params

    @property
    def now(self) -> LearnerState | None:
        """What is owed and said in the life that is lived; None between two lives."""
        return self._mail.now

    def _join(self) -> Granted | None:
        """Ask for a life, again after a while where the syncer says so; None once it is let go."""
        habits = self._habits
        join = Join(habits.island, habits.group, self._layout.fingerprint, habits.region)
        while self._mail.staying:
            match self._link.join(join):
                case Granted() as granted:
                    return granted
                case Refused(island, why, retry_s):
                    if retry_s is None:
                        raise Rejected(f"{island} may not join: {why}")
                    log.warning("%s may not join for %.1f s: %s", island, retry_s, why)
                    self._mail.leaves_within(retry_s)
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
        downlink = Downlink(public, partial(self._catch_up, granted.life))
        if self._lead is not None:
            self._lead.begin(granted.life, partial(self._mail.offered, granted.life))
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
        came = partial(self._came, granted.life, downlink)
        ends = Ends(uplink, Following(downlink, came, self._mail.fail))
        self._mail.begin(state, ends, Ready(stream.remaining))
        return granted.life

    def _catch_up(self, life: Life, p: Fragment, older: Version, newer: Version) -> Missed | None:
        """Ask the shard for what was missed until it answers; None if this life is over before."""
        while True:
            try:
                found = self._link.missed(p, older, newer)
            except Unreachable as error:
                log.info("%s; trying again", error)
                if self._mail.over_within(life, AGAIN_S):
                    return None
                continue
            match found:
                case list():
                    log.info("fragment %d: %d differences fetched, after %s", p, len(found), older)
                case version, _:
                    log.info("fragment %d: fetched whole, %s after %s", p, version, older)
            return found

    def _ask_donors(self, donors: Sequence[Life]) -> OptState | None:
        """The moments of the first donor that has good ones; None if none has."""
        for donor in donors_in_turn(self._habits.island, donors):
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
        """The inner steps of this life, and where their time went."""
        return self._mail.vitals

    def hand_in(self, life: Life, fragment: Fragment, known: Known) -> tuple[HandIn, Sent] | None:
        """What this life trained on the fragment since it last handed it in or adopted it.

        `known`: what has become of its contributions to the fragment before this call. Waits for
        the next step boundary. None if there is nothing, or the life is over.
        """
        if (ends := self._mail.ends(life)) is None:
            return None
        held = known.held if ends.uplink.hear(fragment, known) else None
        if (asked := self._mail.asks(life, fragment, held)) is None:
            return None
        snapshot = asked.result()
        return None if snapshot is None else ends.uplink.encode(fragment, snapshot, self.spoil)

    def moments(self, life: Life) -> Donation | None:
        """This life's optimizer moments, for a learner that joins: of each leaf what this host has
        of it (`Inner.shares`), in flat form. None if the life is over.

        They are copied to the host, which takes the training thread: some leaves at each boundary,
        so that those of one leaf may be a step or two older than those of another. The other hosts
        of the island copy theirs at the same boundaries, and keep them under the donation's number.
        """
        donation = self._mail.asks_moments(life)
        return None if donation is None else donation.given.result()

    @property
    def shares(self) -> Sequence[Share]:
        """What this host has of each leaf of its optimizer's moments."""
        return self._inner.shares

    def copied(self, life: Life) -> tuple[int, float]:
        """How many leaves of its moments this life has copied for whoever asked, and how long its
        steps take, in seconds."""
        return self._mail.copied(life)

    def offer(self, life: Life, publication: Publication, payload: Sent | None) -> None:
        """Take in a newer version at the next step boundary, and learn what was merged; without a
        payload, what it lacks is asked for, on a thread of that fragment: the shard may be away."""
        if (ends := self._mail.ends(life)) is None:
            return
        if self._lead is not None:
            self._lead.tell(News(life, publication))
        ends.uplink.settle_merged(publication)
        self._mail.happens(Settled(publication.merged), life)
        ends.following.offer(publication, payload)

    def _came(
        self, life: Life, downlink: Downlink, publication: Publication, public: Public
    ) -> None:
        """Put a version beside the parameters on the devices, ready to be adopted."""
        p, (version, flat) = publication.fragment, public
        mean = None if self._sharing is None else downlink.take_mean(p, version)
        size = self._port.size(p)
        placed = self._inner.place_flat(flat, size)
        shared = None if mean is None else self._inner.place_flat(mean, size)
        offer = Offer(flat, placed, shared)
        if self._lead is None:
            self._mail.offered(life, p, version, offer)
        else:
            self._lead.placed(life, p, version, offer)

    def had(self, life: Life) -> bool:
        """Is this one of the lives of this learner?"""
        return self._mail.had(life)

    def refused(self, said: ContributionId) -> None:
        """A contribution was discarded: what it took along is this learner's again."""
        if self._lead is not None:
            self._lead.tell(Fate(said))
        if (ends := self._mail.ends(said.life)) is not None:
            ends.uplink.settle(said, merged=False)
            self._mail.happens(Settled((said,)), said.life)

    def cease(self, over: Void) -> None:
        """This life is over by the syncer's word; the next one begins at once."""
        self._mail.happens(Ceased(over), over.life)

    def park(self, life: Life) -> None:
        """Step no more in this life; go on handing in and adopting."""
        self._mail.happens(Parked(), life)

    def leave(self) -> Progress:
        """End this life and begin no other; how far it came."""
        return self._mail.leave()

    def outlive(self, life: Life) -> str:
        """Return when this life, which may be about to begin, is over; with the reason."""
        return self._mail.outlive(life)

    @property
    def drag(self) -> float:
        """So many times as long its steps take, for a fault plan."""
        return self._trainer.drag

    @drag.setter
    def drag(self, factor: float) -> None:
        self._trainer.drag = factor
