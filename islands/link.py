"""A learner's connection to the coordinator, and the learner's settings."""

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
from islands.own_wire import AnyWire


class Link(Protocol):
    """The connection to the coordinator.

    Calls may take long, and raise `Unreachable` when they fail. A report brings along what was
    adopted since the one before: each call costs both sides more than its content.
    """

    def join(self, event: Join) -> Granted | Refused:
        """Ask for a life."""
        ...

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer | Void:
        """Report progress, measurements, and the adoptions since the report before."""
        ...

    def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        """Ask for one more lease."""
        ...

    def left(self, event: Left) -> None:
        """Notify the syncer that this learner has left."""
        ...

    def whole(self, fragments: Sequence[Fragment]) -> list[Public] | None:
        """Fetch the public fragments for a granted life; None if it is over before they have come.

        The call may take as long as their bytes do.
        """
        ...

    def mean_moments(self, fragments: Sequence[Fragment]) -> dict[Fragment, Payload] | None:
        """Fetch the mean of the islands' first moments, for the fragments that have one.

        It is None if the life is over before they have come.
        """
        ...

    def missed(self, p: Fragment, older: Version, newer: Version) -> Missed:
        """Ask the shard once for the deltas from one version to another.

        The shard may be away for long. The caller decides whether they are still needed, and
        retries (`catch_up`).

        Errors: `Unreachable`.
        """
        ...

    def moments(self, donor: Life) -> list[NDArray[Any]] | None:
        """Fetch this host's share of each leaf of a donor's moments; None if that life is over.

        The call returns once the other hosts of this island have theirs.

        Errors: `Unreachable`, `Malformed`.
        """
        ...


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """The settings of a learner, constant over the run."""

    island: Island
    group: str
    wire_up: AnyWire
    """Wire format of deltas."""
    wire_moments: Wire | None
    """Wire format of shared first moments; None: they are not shared."""
    moments_every: int
    """Number of merges of a fragment per exchange of first moments."""
    schedule: Schedule
    overlap: int
    """Overlap in inner steps, as in `learner_messages.Terms`."""
    lease_windows: int
    """Windows in a lease; below this, or a batch, the learner asks for more data."""
    speed: float
    """Relative speed; below 1 it idles, so that a step takes 1 / `speed` of its quickest."""
    step_s: float
    """Least seconds of a step; the learner idles until then."""
    anchor: Anchor
    """The reference point of its deltas when they are merged."""
    encode: Where
    """The place where deltas are encoded, and their anchors kept."""
    region: Region | None
    """The region of the corpus that it reads."""
    until: int | None
    """The clock at which the run ends, in lock-step, as in `learner_messages.Terms`."""
    seed: int = 0
    """The seed of the run, for the keys of its steps."""
    wire_down: AnyWire | None = None
    """Wire format of new versions; None: a built-in one, which a payload names itself."""

    def terms(self, adopt: AdoptRule, batch_windows: int) -> Terms:
        """Return the terms of the learner's state; `batch_windows`: windows of data in one step."""
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
