"""The things that all stub learners of a process have in common: pace, deltas, and a link."""

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
    """The way to the coordinator; each call waits for its answer."""

    async def join(self, event: Join) -> Granted | Refused: ...
    async def report(
        self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> Answer | Void: ...
    async def lease(self, event: LeaseWanted) -> LeaseGranted | Void: ...
    async def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]: ...
    async def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Payload] | tuple[Version, Flat]: ...


@dataclass(slots=True)
class StubPace:
    """How fast all learners of a process step, in seconds; may change while they do.

    `resting`: they report as often, and do not step.
    """

    step_s: float
    resting: bool = False


@dataclass(frozen=True, slots=True)
class Material:
    """What the learners of a process have in common; constant over the run.

    `deltas`: what one step adds to each fragment. `windows`, `tokens`: of a step; `lease_windows`:
    of a lease. `schedule`: when fragments are due.
    """

    layout: Layout
    schedule: Schedule
    wire: Wire
    deltas: tuple[Flat, ...]
    windows: int
    tokens: int
    lease_windows: int

    @property
    def terms(self) -> Terms:
        """The terms of every life: fragments are overwritten, one step after their hand-in."""
        return Terms(
            self.schedule,
            overlap=1,
            carries=False,
            keeps=False,
            batch_windows=self.windows,
            lease_windows=self.lease_windows,
            until=None,
        )

    def handed_in(self, word: HandOver) -> tuple[HandIn, Payload] | None:
        """Return what stands for a fragment's training in this word; None if there is none."""
        if word.said is None:
            return None
        track = word.track
        _, p, start, stop = word.said
        fingerprint = self.layout.fingerprint
        facts = HandIn(word.said, track.base, start, word.tokens, fingerprint, word.progress)
        return facts, encode(self.wire, self.deltas[p] * np.float32(stop - start))
