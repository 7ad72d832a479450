"""The shared parts of all stub learners of a process: pace, deltas, and a link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coordinator.codec import Payload, Wire, encode
from coordinator.fragments import Flat, Layout
from coordinator.protocol import (
    Adopted,
    Answer,
    Fragment,
    Granted,
    HandIn,
    Join,
    LeaseGranted,
    LeaseWanted,
    Refused,
    Report,
    Version,
    Vitals,
    Void,
)
from coordinator.schedule import Schedule
from islands.learner_messages import HandOver, Terms


class StubLink(Protocol):
    """A link to the syncer and the shards; each call waits for its answer."""

    async def join(self, event: Join) -> Granted | Refused:
        """Ask the syncer for a life."""
        ...

    async def report(
        self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> Answer | Void:
        """Report progress, measurements and adoptions to the syncer."""
        ...

    async def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        """Ask the syncer for another lease."""
        ...

    async def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]:
        """Fetch public fragments, each with its version."""
        ...

    async def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Payload] | tuple[Version, Flat]:
        """Fetch the differences from `older` to `newer`, or the whole fragment if some are gone."""
        ...


@dataclass(slots=True)
class StubPace:
    """The pace of all learners of a process; it may change while they run."""

    step_s: float
    """Seconds of one step."""
    resting: bool = False
    """Whether they report at the same rate without stepping."""


@dataclass(frozen=True, slots=True)
class Material:
    """The constant parts that all learners of a process share."""

    layout: Layout
    schedule: Schedule
    """The steps at which fragments are due."""
    wire: Wire
    """The encoding of hand-ins."""
    deltas: tuple[Flat, ...]
    """The delta that one step adds to each fragment."""
    windows: int
    """Windows read in one step."""
    tokens: int
    """Tokens trained in one step."""
    lease_windows: int
    """Windows in one lease."""
    carries: bool = False
    """Whether steps survive an adoption, as with adopt = "carry"; else they are overwritten."""

    @property
    def terms(self) -> Terms:
        """The terms of every life: a version may be adopted one step after the hand-in."""
        return Terms(
            self.schedule,
            overlap=1,
            carries=self.carries,
            keeps=self.carries,
            batch_windows=self.windows,
            lease_windows=self.lease_windows,
            until=None,
        )

    def handed_in(self, word: HandOver) -> tuple[HandIn, Payload] | None:
        """Return the hand-in and payload for this request; None if there is nothing to hand in."""
        if word.contribution is None:
            return None
        track = word.track
        _, p, start, stop = word.contribution
        fingerprint = self.layout.fingerprint
        facts = HandIn(
            word.contribution, track.base, start, word.tokens, fingerprint, word.progress
        )
        return facts, encode(self.wire, self.deltas[p] * np.float32(stop - start))
