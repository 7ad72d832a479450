"""A learner's way to the coordinator, and how it works: what its process gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from coordinator.codec import Payload, Wire
from coordinator.protocol import (
    Adopted,
    Anchor,
    Answer,
    Fragment,
    Granted,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Refused,
    Region,
    Report,
    Version,
    Vitals,
    Void,
)
from coordinator.schedule import Schedule
from islands.adopt import AdoptRule
from islands.encoder import Where
from islands.exchange import Missed, Public
from islands.learner_messages import Terms


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
    def whole(self, fragments: Sequence[Fragment]) -> list[Public] | None:
        """The public fragments, for a life that was granted; None if it was over before they had
        come, which may take as long as their bytes do."""
        ...

    def mean_moments(self, fragments: Sequence[Fragment]) -> dict[Fragment, Payload] | None:
        """The mean of the islands' first moments, of those fragments of which there is one; None
        as in `whole`."""
        ...

    def missed(self, p: Fragment, older: Version, newer: Version) -> Missed:
        """Ask the shard once for what leads from one version to another. Its shard may be away for
        long: whoever asks knows whether it is still needed, and asks again (`catch_up`).

        Errors: `Unreachable`.
        """
        ...

    def moments(self, donor: Life) -> list[NDArray[Any]] | None:
        """Of each leaf of a donor's moments what this host will have of it, once the other hosts of
        this island have theirs; None if that life is over.

        Errors: `Unreachable`, `Malformed`.
        """
        ...


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """How a learner works; constant over the run.

    `overlap`, `until`: as in `learner_words.Terms`. `speed`: below 1 it idles between steps, so
    that one takes 1 / `speed` of its quickest. `step_s`: ... so that none takes less than this.
    `encode`: where its deltas are encoded, and their anchors kept.
    `lease_windows`: it asks for more data when less than this is left, or less than a batch.
    `wire_moments`: how first moments are written where they are shared, with every
    `moments_every`-th merge of a fragment; None: they are not.
    """

    island: Island
    group: str
    wire_up: Wire
    wire_moments: Wire | None
    moments_every: int
    schedule: Schedule
    overlap: int
    lease_windows: int
    speed: float
    step_s: float
    anchor: Anchor
    encode: Where
    region: Region | None
    until: int | None

    def terms(self, adopt: AdoptRule, batch_windows: int) -> Terms:
        """What its learner's state works by; `batch_windows`: data of one step."""
        carries = adopt is AdoptRule.CARRY
        return Terms(
            self.schedule,
            self.overlap,
            carries,
            carries and self.anchor is Anchor.BASE,
            batch_windows,
            self.lease_windows,
            self.until,
        )
