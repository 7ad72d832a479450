"""A host of an island that is not the first: it carries out what the first one does.

One thread carries out orders, in order, so that its devices run the same programs as those of all
other hosts. Publications and requests of a shard are served on the threads of their callers. The
host has its own range of each fragment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, assert_never

import jax
import numpy as np
from numpy.typing import NDArray
from optax import OptState

from coordinator.codec import Payload, decode
from coordinator.errors import HostLost
from coordinator.fragments import Flat, Layout
from coordinator.parts import Part
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Known,
    Life,
    Publication,
    Version,
)
from islands.adopt import FragmentPort
from islands.encoder import ENCODERS
from islands.exchange import Public, Uplink
from islands.hosts.host_life import HostLife
from islands.hosts.orders import (
    Begin,
    CatchUp,
    CopyOut,
    CutOut,
    FateNotice,
    Feed,
    Fetched,
    InnerStep,
    News,
    Order,
    Over,
    Placed,
    PutIn,
    Rehearse,
    Start,
    Word,
)
from islands.inner import Inner, Share
from islands.link import LearnerSettings, Link
from islands.moments import MomentSharing
from islands.randomness import Draws
from islands.replica import Replica
from islands.task import StreamLike
from islands.thread_tasks import Offer

log = logging.getLogger("archipelago.follower")


class Follower:
    """One life after another, directed by the first host; `run` is the thread of orders."""

    def __init__(
        self,
        layout: Layout,
        inner: Inner,
        port: FragmentPort,
        stream: Callable[[], StreamLike],
        link: Link,
        settings: LearnerSettings,
        say: Callable[[Word], None],
        rehearse: Callable[[], None],
        sharing: MomentSharing | None,
    ) -> None:
        """Create a follower without a life.

        `link`: for this host's ranges. `say`: sends a message to the first host. `sharing`: of
        first moments.
        """
        self._layout, self._inner, self._port, self._open_stream = layout, inner, port, stream
        self._link, self._say, self._settings = link, say, settings
        self._rehearse, self._sharing = rehearse, sharing
        self._replica = Replica(inner, port, settings.encode, sharing)
        self._encoder = ENCODERS[settings.encode](settings.wire_up)
        wire = settings.wire_moments
        self._moments_encoder = None if wire is None else ENCODERS[settings.encode](wire)
        self._now: HostLife | None = None
        self._public: dict[Fragment, Public] = {}
        self._moments: OptState | None = None
        self._given: OptState | None = None  # by another island, for the next life
        self._means: dict[Fragment, Flat] = {}
        self._stream: StreamLike
        self._running: jax.Array | float | None = None

    @property
    def idle(self) -> bool:
        """Whether no life is under way, so that nothing is dispatched on the devices."""
        return self._now is None

    # --- orders -----------------------------------------------------------------------------------

    def run(self, orders: Iterable[Order]) -> None:
        """Carry out the orders until there are no more."""
        for order in orders:
            match order:
                case Rehearse():
                    self._rehearse()
                case Begin():
                    self._begin(order)
                case CatchUp(versions):
                    self._catch_up(versions)
                case Start(clock, shared):
                    self._start(clock, shared)
                case Feed(lease):
                    self._stream.add(lease)
                case InnerStep(clock):
                    before = self._running
                    self._running = self._replica.step(self._stream.next(), clock).loss
                    if before is not None:
                        jax.block_until_ready(before)  # at most one step ahead of the devices
                case CutOut(word, keep):
                    if keep:
                        self._replica.keep(word)
                    else:
                        self._lived().hold(word.fragment, self._replica.take(word))
                case PutIn():
                    self._put_in(order)
                case CopyOut(donation, leaf):
                    self._lived().copy(donation, self._inner.moment(self._replica.state, leaf))
                case Over():
                    self._end()
                case News(life, publication):
                    self.offer(life, publication)
                case FateNotice(contribution):
                    self.refused(contribution)
                case _:
                    assert_never(order)

    def _begin(self, order: Begin) -> None:
        self._end()
        moments = self._replica.end()
        self._moments = moments if order.keep_moments else self._given if order.given else None
        self._given = None
        if order.given and self._moments is None:
            raise HostLost(f"{order.life} must begin with given moments, which are not here")
        fragments = [Fragment(p) for p in range(len(self._layout.fragments))]
        newest, means = self._link.whole(fragments), dict[Fragment, Payload]()
        if self._sharing is not None and self._moments is None:
            means = self._link.mean_moments(fragments)
        if newest is None or means is None:
            raise HostLost(f"{order.life} was over before it had begun")
        self._public = dict(zip(fragments, newest, strict=True))
        self._means = {p: decode(payload, self._public[p][1].size) for p, payload in means.items()}
        self._stream, self._running = self._open_stream(), None
        uplink = Uplink(
            order.life, self._encoder, self._layout, self._settings.anchor, self._moments_encoder
        )
        self._now = HostLife(order.life, uplink, self._link, self._public, len(self.shares))
        self._say(Fetched({p: version for p, (version, _) in self._public.items()}))

    def _catch_up(self, versions: Mapping[Fragment, Version]) -> None:
        """Fetch the versions that other hosts have, where this one has older ones."""
        downlink = self._lived().downlink
        for p, version in versions.items():
            if version > self._public[p][0]:
                found = downlink.follow(Publication(p, version, version, ()), None)
                assert found is not None, "only what is behind catches up"
                self._public[p] = found
        self._say(Fetched({p: version for p, (version, _) in self._public.items()}))

    def _end(self) -> None:
        if self._now is not None:
            self._now.end()
        self._now = None

    def _lived(self) -> HostLife:
        """Return the life that orders refer to."""
        assert self._now is not None, "no life has begun"
        return self._now

    def _start(self, clock: int, shared: Sequence[Fragment]) -> None:
        flats = {p: flat for p, (_, flat) in self._public.items()}
        means = {p: self._means.get(p, np.zeros_like(flats[p])) for p in shared}
        life = self._lived().life
        draws = Draws(self._settings.seed, life.island, life.incarnation)
        self._replica.begin(None, self._moments, flats, means, clock, draws)
        self._moments, self._means = None, {}

    def _put_in(self, order: PutIn) -> None:
        """Put the version in place.

        Errors: `HostLost` if it is not here: then the hosts disagree.
        """
        p, version, now = order.fragment, order.version, self._lived()
        offer = now.offered(p, version)
        if offer is None or (order.mean and offer.mean is None):
            raise HostLost(f"{version} of fragment {p} must be put in place, and is not here")
        mean = offer.mean if order.mean else None
        self._replica.adopt(p, offer.flat, offer.placed, mean, keeps=order.keeps)
        now.adopted(p, version)

    # --- called by others -------------------------------------------------------------------------

    def _of(self, life: Life) -> HostLife | None:
        """Return this host's state of a life; None if it is not the present life."""
        now = self._now
        return now if now is not None and now.life == life else None

    def part(self, contribution: ContributionId, known: Known) -> Part | str | None:
        """Return this host's part of a contribution that the first host has handed in.

        The call waits for the order to cut it out. It returns None if the life is over, and the
        reason if the part is no longer held.
        """
        if (now := self._of(contribution.life)) is None:
            return None
        own = self._inner.devices.own(self._layout.sizes[contribution.fragment])
        return now.part(contribution, known, own)

    @property
    def shares(self) -> Sequence[Share]:
        """The share of each leaf of the optimizer's moments that this host has."""
        return self._inner.shares

    def moments(self, life: Life, donation: int) -> list[NDArray[Any]] | None:
        """Return this host's share of the moments that the first host has copied under this number.

        The call waits until they are copied here, too. It returns None if this life is over, or a
        later donation has begun because the first host has abandoned this one.
        """
        now = self._of(life)
        return None if now is None else now.moments(donation)

    def given(self, moments: Sequence[NDArray[Any]]) -> None:
        """Keep this host's share of another island's moments, for the next life.

        Errors: `ValueError` if they do not fit the model.
        """
        self._given = self._inner.accept(moments)

    def offer(self, life: Life, publication: Publication) -> None:
        """Fetch this host's range of a newer version; notify the first host once it is placed."""
        if (now := self._of(life)) is None:
            return
        now.uplink.settle_merged(publication)
        if (found := now.downlink.follow(publication, None)) is None:
            return
        p, (version, flat) = publication.fragment, found
        mean, size = now.downlink.take_mean(p, version), self._layout.sizes[p]
        placed = self._inner.place_flat(flat, size)
        shared = None if mean is None else self._inner.place_flat(mean, size)
        if now.offer(p, version, Offer(flat, placed, shared)):
            self._say(Placed(life, p, version, mean=shared is not None))

    def refused(self, contribution: ContributionId) -> None:
        """Take back the rounding error that a discarded contribution took along."""
        if (now := self._of(contribution.life)) is not None:
            now.uplink.settle(contribution, merged=False)
