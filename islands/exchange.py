"""A learner's side of the wire: the encoder of its hand-ins, and the decoder of new versions.

Everything here happens on the callers' threads, never on the training thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax
import numpy as np

from coordinator.codec import Payload, Sent, Wire, decode, joined, split
from coordinator.fragments import Flat, Layout
from coordinator.protocol import (
    Anchor,
    ContributionId,
    Fragment,
    HandIn,
    Known,
    Life,
    Publication,
    Version,
)
from islands.encoder import Encoder, Numbers, OnHost
from islands.learner_messages import HandOver
from islands.moments import Taken
from islands.own_wire import AnyWire, decoded_of

NOTHING = np.zeros(1, np.float32)
"""The starting point of first moments, and of state: zero."""
EXACT = OnHost(Wire.F32)
"""The encoder of state."""
Public = tuple[Version, Flat]
"""A public fragment, [size] f32, read-only by agreement, and its version."""
Missed = list[Sent] | Public
"""The way to a newer public fragment: deltas to add in order, or the whole fragment."""


def _lock() -> threading.Lock:
    """Return a lock; named here, so that tests can replace `threading` in this module."""
    return threading.Lock()


@dataclass(frozen=True, slots=True)
class Basis:
    """The start of a fragment's deltas, as arrays of [size] f32."""

    public: Flat
    """The public fragment that was adopted last."""
    origin: Numbers
    """The fragment at the last adoption or hand-in, on the side where deltas are encoded."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A fragment at a step boundary, with its basis."""

    flat: jax.Array
    """The fragment, still on the devices, padded as `FragmentPort` defines."""
    basis: Basis
    moments: Taken | None = None
    """The fragment's first moments, if they are handed in."""


@dataclass(slots=True, eq=False)
class FragmentSnapshot:
    """A hand-in as it was cut out, until it is encoded; it may be asked for long after that."""

    word: HandOver
    cut: Cut | None
    """The cut arrays; None once they are encoded."""
    written: tuple[HandIn, Sent] | None = None
    """The encoded hand-in; `lock` guards it."""
    lock: threading.Lock = field(default_factory=_lock)


@dataclass(slots=True)
class _Rounding:
    """The rounding errors of one fragment: ready for the next message, or travelling with one."""

    ready: Numbers | None = None
    """The error that the next message takes along."""
    sent: dict[ContributionId, tuple[Numbers | None, Numbers]] = field(
        default_factory=dict[ContributionId, tuple[Numbers | None, Numbers]]
    )
    """The error that each message of unknown fate took along, and its own error."""
    asked: tuple[int, int] = (0, 0)
    """The last `Known.asked` that was received."""
    lock: threading.Lock = field(default_factory=_lock)
    """The lock held while this fragment is encoded; other fragments do not wait for it."""


class Uplink:
    """The encoder of one life's hand-ins, with error feedback per fragment.

    A message includes the rounding error of those before it. If it is merged, its own error is kept
    for the next one. Otherwise its delta is discarded, and the included error is kept again. Its
    fate is known at the latest when more is asked for (docs/explanation/protocol.md, Up and down).
    """

    def __init__(
        self,
        life: Life,
        encoder: Encoder,
        layout: Layout,
        anchor: Anchor = Anchor.BASE,
        moments: Encoder | None = None,
    ) -> None:
        """Create an uplink; `moments`: the encoder of first moments, None if none are sent.

        First moments go without error feedback: a residual would be of another time.
        """
        self._anchor, self._encoder, self._moments = anchor, encoder, moments
        self._life, self._fingerprint = life, layout.fingerprint
        self._state_fragment = layout.state_fragment
        self._roundings = [_Rounding() for _ in layout.fragments]

    def encode(
        self, fragment: Fragment, snapshot: FragmentSnapshot, spoil: float = 1.0
    ) -> tuple[HandIn, Sent]:
        """Encode the snapshot; return the facts and one contiguous buffer, or two with moments.

        It is encoded once: if it is asked for twice, both calls return the same bytes, even if the
        first have been merged already. `spoil`: a factor that a fault plan puts on the delta.
        """
        with snapshot.lock:
            if snapshot.written is None:
                assert snapshot.cut is not None, "it goes once it is written"
                snapshot.written = self._write(fragment, snapshot.word, snapshot.cut, spoil)
                snapshot.cut = None
            return snapshot.written

    def _write(
        self, fragment: Fragment, word: HandOver, cut: Cut, spoil: float
    ) -> tuple[HandIn, Sent]:
        track, basis = word.track, cut.basis
        contribution = ContributionId(self._life, fragment, track.from_step, word.progress.steps)
        origin, since_step = basis.origin, track.from_step
        if self._anchor is Anchor.CURRENT:  # from the base on, including earlier hand-ins
            origin, since_step = basis.public, track.since_step
        rounding, size = self._roundings[fragment], basis.public.size
        with rounding.lock:
            taken, rounding.ready = rounding.ready, None
            if fragment == self._state_fragment:  # the values, exact: they are averaged
                payload, own_error = EXACT(cut.flat, NOTHING, None, spoil, size)
            else:
                payload, own_error = self._encoder(cut.flat, origin, taken, spoil, size)
            if own_error is not None:
                rounding.sent[contribution] = (taken, own_error)
        facts = HandIn(
            contribution, track.base, since_step, word.tokens, self._fingerprint, word.progress
        )
        if cut.moments is None or self._moments is None or fragment == self._state_fragment:
            return facts, payload
        moments, _ = self._moments(cut.moments.flat, NOTHING, None, 1.0, size)
        return facts, joined(payload, moments)

    def hear(self, fragment: Fragment, known: Known) -> bool:
        """Settle earlier messages of the fragment by the shard's notices.

        Returns False if the message is void: a later one has arrived already.
        """
        rounding = self._roundings[fragment]
        with rounding.lock:
            if known.asked <= rounding.asked:
                return False  # it was delayed: later messages are not in it
            rounding.asked = known.asked
            fates = {contribution: contribution in known.merged for contribution in rounding.sent}
        for contribution, merged in fates.items():
            if contribution not in known.held:
                self.settle(contribution, merged=merged)
        return True

    def settle_merged(self, publication: Publication) -> None:
        """Settle this life's contributions that are in a public version."""
        for contribution in publication.merged:
            if contribution.life == self._life:
                self.settle(contribution, merged=True)

    def settle(self, contribution: ContributionId, *, merged: bool) -> None:
        """Settle a message whose fate is known; a message of another life is ignored."""
        rounding = self._roundings[contribution.fragment]
        with rounding.lock:
            if (errors := rounding.sent.pop(contribution, None)) is None:
                return
            taken, own_error = errors
            residual = own_error if merged else taken
            if residual is not None:
                rounding.ready = residual if rounding.ready is None else rounding.ready + residual


class Downlink:
    """The public chain of each fragment, equal to the shard's to the last bit."""

    def __init__(
        self,
        public: Mapping[Fragment, Public],
        missed: Callable[[Fragment, Version, Version], Missed | None],
        wire: AnyWire | None = None,
    ) -> None:
        """Create a downlink.

        `wire`: the encoding of differences; None: a built-in one, which a payload names itself.
        `missed`: asks for the deltas from one version of a fragment to another; it returns None if
        the life is over before they have come.
        """
        self._public, self._missed, self._wire = dict(public), missed, wire
        self._means: dict[Fragment, tuple[Version, Payload]] = {}
        self._locks = {fragment: threading.Lock() for fragment in public}

    def lacks(self, publication: Publication, payload: Sent | None) -> bool:
        """Return whether a shard has to be asked before this version can be followed."""
        with self._locks[publication.fragment]:
            version, _ = self._public[publication.fragment]
        fits = payload is not None and publication.previous == version
        return publication.version > version and not fits

    def follow(self, publication: Publication, payload: Sent | None) -> Public | None:
        """Add the delta to the version that it belongs to, after any missed ones.

        Missed deltas are fetched. Without a payload, for which there was no room, they lead to the
        new version alone. Returns None if the fragment is at that version or past it already, or
        the life is over.
        """
        fragment = publication.fragment
        with self._locks[fragment]:
            version, flat = self._public[fragment]
            if publication.version <= version:
                return None
            missed: Missed | None = []
            upto = publication.version if payload is None else publication.previous
            if upto != version:
                missed = self._missed(fragment, version, upto)
            match missed:
                case None:
                    return None
                case list() as differences:
                    moments: Payload | None = None
                    for sent in differences if payload is None else (*differences, payload):
                        difference, moments = split(sent)
                        flat = flat + decoded_of(self._wire, difference, flat.size)
                    newest = (publication.version, flat)
                    if moments is not None:
                        self._means[fragment] = publication.version, moments
                case replacement:
                    newest = replacement
            self._public[fragment] = newest
            return newest

    def take_mean(self, p: Fragment, version: Version) -> Flat | None:
        """Return and drop the mean of first moments, [size] f32, that came with this version.

        It is None if none came, or a newer version has come.
        """
        with self._locks[p]:
            mean_version, moments = self._means.pop(p, (None, None))
            size = self._public[p][1].size
        return decode(moments, size) if moments is not None and mean_version == version else None
