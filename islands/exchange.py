"""A learner's two ends of the wire: what it sends, with its rounding errors, and what it receives.

Everything here happens on the threads of whoever calls, never on the training thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax
import numpy as np

from coordinator.codec import Payload, Sent, decode, joined, split
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
from islands.encoder import Encoder, Numbers
from islands.learner_messages import HandOver
from islands.moments import Taken

NOTHING = np.zeros(1, np.float32)
"""Where first moments count from."""
Public = tuple[Version, Flat]
"""A public fragment, [size] f32, read-only by agreement, and its version."""
Missed = list[Sent] | Public
"""What leads to a newer public fragment: differences to be added in order, or another one whole."""


def _lock() -> threading.Lock:
    """Return a lock; named here, so that tests can replace `threading` in this module."""
    return threading.Lock()


@dataclass(frozen=True, slots=True)
class Basis:
    """Where the deltas of a fragment count from, as arrays of [size] f32.

    `public`: as it was adopted last. `origin`: the same, or as it was handed in since; where it
    shall be read (host or device).
    """

    public: Flat
    origin: Numbers


@dataclass(frozen=True, slots=True)
class Cut:
    """A fragment at a step boundary, still on the devices (filled up as `FragmentPort` says), and
    its basis. `moments`: its first moments, where they go along."""

    flat: jax.Array
    basis: Basis
    moments: Taken | None = None


@dataclass(slots=True, eq=False)
class FragmentSnapshot:
    """What is handed in, in words, and as it was cut out: until it is encoded, since it may be
    asked for long after that.

    `written`: what was made of it then, under its `lock`.
    """

    word: HandOver
    cut: Cut | None
    written: tuple[HandIn, Sent] | None = None
    lock: threading.Lock = field(default_factory=_lock)


@dataclass(slots=True)
class _Rounding:
    """Rounding errors of one fragment: `ready` for the next message, or travelling with one.

    `sent`: for each message whose fate is not known, what it took along and what it left behind.
    `asked`: see `Known`, the last one that was heard. `lock`: held while this fragment is encoded;
    those of other fragments do not wait for it.
    """

    ready: Numbers | None = None
    sent: dict[ContributionId, tuple[Numbers | None, Numbers]] = field(
        default_factory=dict[ContributionId, tuple[Numbers | None, Numbers]]
    )
    asked: tuple[int, int] = (0, 0)
    lock: threading.Lock = field(default_factory=_lock)


class Uplink:
    """Encodes hand-ins of one life, with error feedback per fragment (docs/protocol.md, Up-link).

    A message takes along the error of the ones before it. Merged, it leaves its own error behind
    for the next; else it gives back what it took, its delta being discarded. What has become of it
    is known when more is asked for at the latest.
    """

    def __init__(
        self,
        life: Life,
        encoder: Encoder,
        layout: Layout,
        anchor: Anchor = Anchor.BASE,
        moments: Encoder | None = None,
    ) -> None:
        """`moments`: of first moments, which go without error feedback: what is left behind would
        be of another time; None if there are none to be sent."""
        self._anchor, self._encoder, self._moments = anchor, encoder, moments
        self._life, self._fingerprint = life, layout.fingerprint
        self._roundings = [_Rounding() for _ in layout.fragments]

    def encode(
        self, fragment: Fragment, snapshot: FragmentSnapshot, spoil: float = 1.0
    ) -> tuple[HandIn, Sent]:
        """Write the snapshot; return the facts and one contiguous buffer, or two with moments.

        It is written once: if two have asked for it, both get the same bytes, also if those of the
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
        if self._anchor is Anchor.CURRENT:  # from the base on, whatever was handed in since
            origin, since_step = basis.public, track.since_step
        rounding, size = self._roundings[fragment], basis.public.size
        with rounding.lock:
            taken, rounding.ready = rounding.ready, None
            payload, left = self._encoder(cut.flat, origin, taken, spoil, size)
            if left is not None:
                rounding.sent[contribution] = (taken, left)
        facts = HandIn(
            contribution, track.base, since_step, word.tokens, self._fingerprint, word.progress
        )
        if cut.moments is None or self._moments is None:
            return facts, payload
        moments, _ = self._moments(cut.moments.flat, NOTHING, None, 1.0, size)
        return facts, joined(payload, moments)

    def hear(self, fragment: Fragment, known: Known) -> bool:
        """More of the fragment is asked for; what is known of all that was sent of it before.

        False if that is void: more has been heard already.
        """
        rounding = self._roundings[fragment]
        with rounding.lock:
            if known.asked <= rounding.asked:
                return False  # it was on its way for long: what was sent since is not in it
            rounding.asked = known.asked
            fates = {contribution: contribution in known.merged for contribution in rounding.sent}
        for contribution, merged in fates.items():
            if contribution not in known.held:
                self.settle(contribution, merged=merged)
        return True

    def settle_merged(self, publication: Publication) -> None:
        """What this life sent is in a public version."""
        for contribution in publication.merged:
            if contribution.life == self._life:
                self.settle(contribution, merged=True)

    def settle(self, contribution: ContributionId, *, merged: bool) -> None:
        """The fate of a message is known; of one that this life did not send, nothing follows."""
        rounding = self._roundings[contribution.fragment]
        with rounding.lock:
            if (errors := rounding.sent.pop(contribution, None)) is None:
                return
            taken, left = errors
            back = left if merged else taken
            if back is not None:
                rounding.ready = back if rounding.ready is None else rounding.ready + back


class Downlink:
    """Follows the public chain of each fragment, equal to the shard's to the last bit."""

    def __init__(
        self,
        public: Mapping[Fragment, Public],
        missed: Callable[[Fragment, Version, Version], Missed | None],
    ) -> None:
        """`missed`: asks for what leads from one version of a fragment to another; None if the life
        is over before it has come."""
        self._public, self._missed = dict(public), missed
        self._means: dict[Fragment, tuple[Version, Payload]] = {}
        self._locks = {fragment: threading.Lock() for fragment in public}

    def lacks(self, publication: Publication, payload: Sent | None) -> bool:
        """Return whether a shard has to be asked before this version can be followed."""
        with self._locks[publication.fragment]:
            version, _ = self._public[publication.fragment]
        fits = payload is not None and publication.previous == version
        return publication.version > version and not fits

    def follow(self, publication: Publication, payload: Sent | None) -> Public | None:
        """Add the difference to the version it belongs to, once what was missed has been fetched;
        without a payload, which there was no room for, that is all there is to add.

        None if the fragment is at that version or past it already, or the life is over.
        """
        fragment = publication.fragment
        with self._locks[fragment]:
            version, flat = self._public[fragment]
            if publication.version <= version:
                return None
            found: Missed | None = []
            upto = publication.version if payload is None else publication.previous
            if upto != version:
                found = self._missed(fragment, version, upto)
            match found:
                case None:
                    return None
                case list() as differences:
                    moments: Payload | None = None
                    for each in differences if payload is None else (*differences, payload):
                        difference, moments = split(each)
                        flat = flat + decode(difference, flat.size)
                    newest = (publication.version, flat)
                    if moments is not None:
                        self._means[fragment] = publication.version, moments
                case whole:
                    newest = whole
            self._public[fragment] = newest
            return newest

    def take_mean(self, p: Fragment, version: Version) -> Flat | None:
        """The mean of the islands' first moments, [size] f32, that came with this version, which
        was followed; it is let go of. None if none came, or a newer one has."""
        with self._locks[p]:
            came, moments = self._means.pop(p, (None, None))
            size = self._public[p][1].size
        return decode(moments, size) if moments is not None and came == version else None
