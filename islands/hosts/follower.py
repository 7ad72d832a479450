"""A host of an island that is not the first: it carries out what the first one does.

One thread carries out orders, in their order, so that its devices run the same programs as those of
all other hosts; what comes from elsewhere (publications, questions of a shard) is served on the
threads of whoever calls. What it has of a fragment is its own range.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, assert_never

import jax
import numpy as np
from numpy.typing import NDArray
from optax import OptState

from coordinator.codec import Payload, decode
from coordinator.errors import HostLost, Unreachable
from coordinator.fragments import Flat, Layout
from coordinator.parts import Part
from coordinator.protocol import (
    Anchor,
    ContributionId,
    Fragment,
    Known,
    Life,
    Publication,
    Version,
)
from islands.adopt import FragmentPort
from islands.encoder import ENCODERS
from islands.exchange import Downlink, Missed, Public, Snapshot, Uplink
from islands.hosts.orders import (
    Begin,
    CatchUp,
    CopyOut,
    CutOut,
    Fate,
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
from islands.link import AGAIN_S, Habits, Link
from islands.mailbox import Offer
from islands.moments import Sharing
from islands.replica import Replica
from islands.task import StreamLike

log = logging.getLogger("archipelago.follower")
SNAPSHOTS = 2
"""Of each fragment, that a shard may still ask for."""


class Follower:
    """One life after another, as the first host lives them; `run` is its thread of orders."""

    def __init__(
        self,
        layout: Layout,
        inner: Inner,
        port: FragmentPort,
        stream: Callable[[], StreamLike],
        link: Link,
        habits: Habits,
        say: Callable[[Word], None],
        rehearse: Callable[[], None],
        sharing: Sharing | None,
    ) -> None:
        """`link`: of this host's ranges. `say`: to the first host. `sharing`: of first moments."""
        self._layout, self._inner, self._port, self._open_stream = layout, inner, port, stream
        self._link, self._say, self._habits = link, say, habits
        self._rehearse, self._sharing = rehearse, sharing
        self._replica = Replica(inner, port, habits.encode, sharing)
        self._encoder = ENCODERS[habits.encode](habits.wire_up)
        wire = habits.wire_moments
        self._moments_encoder = None if wire is None else ENCODERS[habits.encode](wire)
        self._changed = threading.Condition()
        self._life: Life | None = None
        self._uplink: Uplink | None = None
        self._downlink: Downlink | None = None
        self._snapshots: dict[Fragment, list[Snapshot]] = {}
        self._offers: dict[tuple[Fragment, Version], Offer] = {}
        self._public: dict[Fragment, Public] = {}
        self._moments: OptState | None = None
        self._given: OptState | None = None  # by another island, for the next life
        # moments for another island, and the number of the donation that they are of
        self._copied: tuple[int, list[NDArray[Any]]] = 0, []
        self._means: dict[Fragment, Flat] = {}
        self._stream: StreamLike
        self._running: jax.Array | None = None

    @property
    def idle(self) -> bool:
        """Is no life under way, so that nothing is dispatched on the devices?"""
        return self._life is None

    # --- orders -----------------------------------------------------------------------------------

    def run(self, orders: Iterable[Order]) -> None:
        """Carry them out until there are no more."""
        for order in orders:
            match order:
                case Rehearse():
                    self._rehearse()
                case Begin():
                    self._begin(order)
                case CatchUp(versions):
                    for p, version in versions.items():
                        if version > self._public[p][0]:
                            self._public[p] = self._newer(p, version)
                    self._say(Fetched({p: version for p, (version, _) in self._public.items()}))
                case Start(clock, shared):
                    self._start(clock, shared)
                case Feed(lease):
                    self._stream.add(lease)
                case InnerStep(clock):
                    before = self._running
                    self._running = self._replica.step(self._stream.next(), clock).loss
                    if before is not None:
                        jax.block_until_ready(before)  # one step ahead of the devices, no more
                case CutOut(word, keep):
                    if keep:
                        self._replica.keep(word)
                    else:
                        self._hold(word.fragment, self._replica.take(word))
                case PutIn():
                    self._put_in(order)
                case CopyOut(donation, leaf):
                    self._copy_out(donation, leaf)
                case Over():
                    self._end()
                case News(life, publication):
                    self.offer(life, publication)
                case Fate(said):
                    self.refused(said)
                case _:
                    assert_never(order)

    def _begin(self, order: Begin) -> None:
        self._end()
        moments = self._replica.end()
        self._moments = moments if order.keep_moments else self._given if order.given else None
        self._given = None
        if order.given and self._moments is None:
            raise HostLost(f"{order.life} shall begin with given moments, which are not here")
        fragments = [Fragment(p) for p in range(len(self._layout.fragments))]
        whole, means = self._link.whole(fragments), dict[Fragment, Payload]()
        if self._sharing is not None and self._moments is None:
            means = self._link.mean_moments(fragments)
        if whole is None or means is None:
            raise HostLost(f"{order.life} was over before it had begun")
        self._public = dict(zip(fragments, whole, strict=True))
        self._means = {p: decode(each, self._public[p][1].size) for p, each in means.items()}
        self._stream, self._running = self._open_stream(), None
        with self._changed:
            self._life = order.life
            anchor: Anchor = self._habits.anchor
            self._uplink = Uplink(
                order.life, self._encoder, self._layout, anchor, self._moments_encoder
            )
            self._downlink = Downlink(self._public, partial(self._missed, order.life))
        self._say(Fetched({p: version for p, (version, _) in self._public.items()}))

    def _newer(self, p: Fragment, version: Version) -> Public:
        assert self._downlink is not None
        found = self._downlink.follow(Publication(p, version, version, ()), None)
        assert found is not None, "only what is behind catches up"
        return found

    def _end(self) -> None:
        with self._changed:
            self._life = self._uplink = self._downlink = None
            self._snapshots, self._offers = {}, {}
            self._copied = self._copied[0], []
            self._changed.notify_all()

    def _copy_out(self, donation: int, leaf: int) -> None:
        copy = self._inner.moment(self._replica.state, leaf)
        with self._changed:
            number, copied = self._copied
            self._copied = donation, [*(copied if number == donation else ()), copy]
            self._changed.notify_all()

    def _hold(self, p: Fragment, snapshot: Snapshot) -> None:
        with self._changed:
            self._snapshots[p] = [*self._snapshots.get(p, []), snapshot][-SNAPSHOTS:]
            self._changed.notify_all()

    def _start(self, clock: int, shared: Sequence[Fragment]) -> None:
        flats = {p: flat for p, (_, flat) in self._public.items()}
        means = {p: self._means.get(p, np.zeros_like(flats[p])) for p in shared}
        self._replica.begin(None, self._moments, flats, means, clock)
        self._moments, self._means = None, {}

    def _put_in(self, order: PutIn) -> None:
        """Errors: `HostLost` if it is not there: then the hosts are of two minds."""
        p, version = order.fragment, order.version
        with self._changed:
            offer = self._offers.get((p, version))
        if offer is None or (order.mean and offer.mean is None):
            raise HostLost(f"{version} of fragment {p} shall be put in place, and is not here")
        mean = offer.mean if order.mean else None
        self._replica.adopt(p, offer.flat, offer.placed, mean, keeps=order.keeps)
        with self._changed:
            self._offers = {
                key: each for key, each in self._offers.items() if key[0] != p or key[1] > version
            }

    # --- called by others -------------------------------------------------------------------------

    def part(self, said: ContributionId, known: Known) -> Part | str | None:
        """This host's part of a contribution that the first one has handed in; None if its life is
        over, why not if it has it no more. Waits for the order to take it."""
        p = said.fragment
        with self._changed:
            self._changed.wait_for(lambda: self._life != said.life or self._has(said))
            found = [each for each in self._snapshots.get(p, []) if each.word.said == said]
            uplink = self._uplink if self._life == said.life else None  # not the next life's
        if uplink is None:
            return None
        if not found:
            return f"a host has no part of {said} any more"
        uplink.hear(p, known)
        facts, sent = uplink.encode(p, found[-1])
        own = self._inner.devices.own(self._layout.sizes[p])
        return Part(facts, own.start, own.stop, sent)

    def _has(self, said: ContributionId) -> bool:
        """Is it here, or was it? The lock is held."""
        held = self._snapshots.get(said.fragment, [])
        return any(each.word.progress.steps >= said.to_step for each in held)

    @property
    def shares(self) -> Sequence[Share]:
        """What this host has of each leaf of its optimizer's moments."""
        return self._inner.shares

    def moments(self, life: Life, donation: int) -> list[NDArray[Any]] | None:
        """Return its share of the moments that the first host has copied under this number; wait
        until they are copied here, too. None if this life is over, or a later donation has begun,
        so that the first host has given this one up."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._life != life or self._copied[0] > donation or self._has_copied(donation)
                )
            )
            if self._life != life or not self._has_copied(donation):
                return None
            found, self._copied = self._copied[1], (donation, [])
            return found

    def _has_copied(self, donation: int) -> bool:
        number, copied = self._copied
        return number == donation and len(copied) == len(self.shares)

    def given(self, moments: Sequence[NDArray[Any]]) -> None:
        """Its share of what another island has given, for the next life.

        Errors: `ValueError`.
        """
        self._given = self._inner.accept(moments)

    def offer(self, life: Life, publication: Publication) -> None:
        """Fetch a newer version, as far as it is this host's."""
        with self._changed:
            if self._life != life or self._uplink is None or self._downlink is None:
                return
            uplink, downlink = self._uplink, self._downlink
        uplink.settle_merged(publication)
        if (found := downlink.follow(publication, None)) is None:
            return
        p, (version, flat) = publication.fragment, found
        mean, size = downlink.take_mean(p, version), self._layout.sizes[p]
        placed = self._inner.place_flat(flat, size)
        shared = None if mean is None else self._inner.place_flat(mean, size)
        with self._changed:
            if self._life != life:
                return
            self._offers[p, version] = Offer(flat, placed, shared)
        self._say(Placed(life, p, version, mean=shared is not None))

    def _missed(self, life: Life, p: Fragment, older: Version, newer: Version) -> Missed | None:
        """Ask the shard until it answers; None if this life is over before."""
        while True:
            try:
                return self._link.missed(p, older, newer)
            except Unreachable as error:
                log.info("%s; trying again", error)
            with self._changed:
                if self._changed.wait_for(lambda: self._life != life, AGAIN_S):
                    return None

    def refused(self, said: ContributionId) -> None:
        """A contribution was discarded."""
        with self._changed:
            uplink = self._uplink if self._life == said.life else None
        if uplink is not None:
            uplink.settle(said, merged=False)
