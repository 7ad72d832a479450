"""The setup of a life before its first step: fetch, put in place, hand to the threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import assert_never

import jax
from optax import OptState

from coordinator.codec import decode
from coordinator.errors import Malformed, Unreachable
from coordinator.fragments import Flat, Layout, sew
from coordinator.protocol import (
    Fragment,
    Granted,
    Life,
    MomentsTaken,
    Publication,
    Version,
)
from islands.adopt import FragmentPort
from islands.catch_up import catch_up
from islands.encoder import ENCODERS
from islands.exchange import Downlink, Missed, Public, Uplink
from islands.hosts.lead import Lead, agreed
from islands.hosts.orders import Begin, Feed, Order, Start
from islands.hosts.publication_lanes import Following
from islands.learner_life import begun
from islands.learner_messages import Ready
from islands.life_start import (
    AskDonors,
    KeepMoments,
    Remains,
    StartAnew,
    TakeMeans,
    life_start,
)
from islands.link import LearnerSettings, Link
from islands.mailbox import Mailbox
from islands.moments import MomentSharing
from islands.task import StreamLike, Task
from islands.thread_tasks import Ends, Offer
from islands.trainer import Trainer
from islands.training_step import TrainingStep

log = logging.getLogger("archipelago.learner")


class LifeSetup:
    """The setup of one life after another of one island's learner."""

    def __init__(
        self,
        task: Task,
        layout: Layout,
        inner: TrainingStep,
        port: FragmentPort,
        sharing: MomentSharing | None,
        stream: Callable[[], StreamLike],
        link: Link,
        settings: LearnerSettings,
        mail: Mailbox,
        trainer: Trainer,
        lead: Lead[Order] | None,
    ) -> None:
        """Create the setup with the arguments of `Learner`, its mailbox and its training thread."""
        self._layout, self._inner, self._port, self._sharing = layout, inner, port, sharing
        self._open_stream, self._link, self._settings = stream, link, settings
        self._mail, self._trainer, self._lead = mail, trainer, lead
        self._encoder = ENCODERS[settings.encode](settings.wire_up)
        wire = settings.wire_moments
        self._moments_encoder = None if wire is None else ENCODERS[settings.encode](wire)
        self._structure = jax.tree.structure(task.shapes)

    def begin(self, granted: Granted, *, distrusted: bool) -> Life | None:
        """Begin a life at the current versions; None if it was over before it had begun.

        The parameters come from the public fragments, the data from leases, the moments as
        `life_start` decides. `distrusted`: whether the syncer distrusts the life before.
        """
        fragments = [Fragment(p) for p in range(len(self._layout.fragments))]
        if (newest := self._link.whole(fragments)) is None:
            return None
        public = dict(zip(fragments, newest, strict=True))
        moments = self._trainer.moments()
        start = life_start(
            Remains(moments=moments is not None, distrusted=distrusted),
            island=self._settings.island,
            donors=granted.donors if self._inner.shares else (),  # else nothing could be given
            shares_moments=self._sharing is not None,
        )
        log.debug("%s: %s", granted.life, start.why)
        taken, shared = None, dict[Fragment, Flat]()
        if not isinstance(start, KeepMoments):
            moments = None  # free them before those that come take memory
        match start:
            case TakeMeans():
                if (found := self._ask_shards(fragments)) is None:
                    return None
                shared = found
            case AskDonors(donors):
                moments, taken = self._ask_donors(donors)
            case KeepMoments() | StartAnew():
                pass
            case _:
                assert_never(start)
        wire = self._settings.wire_down
        downlink = Downlink(public, partial(self._catch_up, granted.life), wire)
        if (lead := self._lead) is not None:
            lead.begin(granted.life, partial(self._mail.offered, granted.life))
            kept = isinstance(start, KeepMoments)
            lead.tell(Begin(granted.life, keep_moments=kept, given=taken is not None))
            public = agreed(lead, public, downlink, Start(granted.offset, tuple(shared)))
        stream = self._put_in_place(granted, public, moments, shared)
        self._hand_to_threads(granted, public, downlink, stream, taken)
        return granted.life

    def _put_in_place(
        self,
        granted: Granted,
        public: Mapping[Fragment, Public],
        moments: OptState | None,
        shared: Mapping[Fragment, Flat],
    ) -> StreamLike:
        """Put fragments and moments on the devices; return the data, with the leases granted."""
        flats = {p: flat for p, (_, flat) in public.items()}
        params = None
        if self._lead is None:
            params = jax.tree.unflatten(self._structure, sew(self._layout, [*flats.values()]))
        stream = self._open_stream()
        incarnation = granted.life.incarnation
        self._trainer.begin(params, moments, flats, shared, granted.offset, stream, incarnation)
        for lease in granted.leases:
            if self._lead is not None:
                self._lead.tell(Feed(lease))
            stream.add(lease)
        return stream

    def _hand_to_threads(
        self,
        granted: Granted,
        public: Mapping[Fragment, Public],
        downlink: Downlink,
        stream: StreamLike,
        taken: MomentsTaken | None,
    ) -> None:
        """Make the state of the life and the ends of its wire, and give both to the mailbox."""
        settings = self._settings
        terms = settings.terms(self._port.rule, stream.batch_size)
        versions = [version for version, _ in public.values()]
        state = begun(terms, granted, versions, stream.cursor, stream.remaining, taken)
        uplink = Uplink(
            granted.life, self._encoder, self._layout, settings.anchor, self._moments_encoder
        )
        on_arrival = partial(self._came, granted.life, downlink)
        ends = Ends(uplink, Following(downlink, on_arrival, self._mail.history.fail))
        self._mail.begin(state, ends, Ready(stream.remaining))

    def _ask_shards(self, fragments: Sequence[Fragment]) -> dict[Fragment, Flat] | None:
        """Return the mean of the islands' first moments, for the fragments that have one.

        It is None if this life was over before they had come.
        """
        if (found := self._link.mean_moments(fragments)) is None:
            return None
        owns = {p: self._inner.devices.own(self._layout.sizes[p]) for p in found}
        return {p: decode(each, owns[p].stop - owns[p].start) for p, each in found.items()}

    def _ask_donors(
        self, donors: Sequence[Life]
    ) -> tuple[OptState, MomentsTaken] | tuple[None, None]:
        """Return the moments of the first donor whose moments fit, and where they are from."""
        for donor in donors:
            try:
                if (given := self._link.moments(donor)) is not None:
                    moments = self._inner.accept(given)
                    log.info("moments of %s", donor)
                    pairs = zip(self._inner.shares, given, strict=True)
                    nbytes = sum(share.size * leaf.itemsize for share, leaf in pairs)
                    return moments, MomentsTaken(donor, nbytes)
            except (Unreachable, Malformed, ValueError) as error:
                log.info("no moments from %s: %s", donor, error)
        return None, None

    def _catch_up(self, life: Life, p: Fragment, older: Version, newer: Version) -> Missed | None:
        """Return the missed deltas of a fragment; None if this life is over before they come."""
        over_within = partial(self._mail.history.over_within, life)
        found = catch_up(self._link, p, older, newer, over_within, log)
        match found:
            case list():
                log.info("fragment %d: %d differences fetched, after %s", p, len(found), older)
            case (version, _):
                log.info("fragment %d: fetched whole, %s after %s", p, version, older)
            case None:
                pass
        return found

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
