"""The vocabulary of learners, syncer and shards: ids, versions, events, effects.

Events carry facts and opaque references, never arrays. `docs/explanation/protocol.md` defines what
each one means and in which order the shell must carry out effects. Times are seconds of the
syncer's clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, NewType

METRICS_SENT = 32
"""The most metrics of a loss that a learner reports; more are left out."""
METRIC_NAME_LENGTH = 64
"""The most characters of a metric's name in a report; more are cut off."""
Island = NewType("Island", str)
"""The name of a learner's devices and data for the whole run, such as `eu-3`."""
Incarnation = NewType("Incarnation", int)
"""The number of one life of a learner, granted at its join, growing strictly over the run."""
Region = NewType("Region", str)
"""The place of a part of the corpus that must not be read elsewhere, such as `eu`."""
Fragment = NewType("Fragment", int)
"""The index p of a fragment, 0 <= p < P."""
Reference = NewType("Reference", str)
"""The name of bytes that a shard holds; opaque to the rules."""


class Version(NamedTuple):
    """The version of a fragment, ordered first by the syncer's generation."""

    generation: int
    """Number of restarts of the syncer before this version was made."""
    number: int
    """Number of the merge; the numbers of versions that were never public are not reused."""

    def __str__(self) -> str:
        return f"v{self.number}" if self.generation == 0 else f"v{self.generation}.{self.number}"


class Life(NamedTuple):
    """One incarnation of one island's learner, which signs every message."""

    island: Island
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"{self.island}#{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Lease:
    """A piece of its region's shuffled corpus."""

    number: int
    """Number of the piece within its region; each region counts its own."""
    start: int = 0
    """Windows of the piece that are consumed already."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one life, as totals, so that losing a report costs nothing."""

    steps: int
    """Inner steps of this life."""
    tokens: int
    """Tokens trained in this life."""
    lease: Lease
    """The data cursor: the lease being read, and the windows of it consumed so far."""


class ContributionId(NamedTuple):
    """The identity of a contribution: one life, one fragment, inner steps [from_step, to_step)."""

    life: Life
    fragment: Fragment
    from_step: int
    to_step: int

    def __str__(self) -> str:
        return f"{self.life}/f{self.fragment}[{self.from_step},{self.to_step})"


class Anchor(StrEnum):
    """The reference point of a contribution's delta when it is merged."""

    BASE = "base"  # the parameters where its interval began at the learner: only its own progress
    CURRENT = "current"  # the syncer's fragment at the merge (arXiv:2604.21428)


@dataclass(frozen=True, slots=True)
class HandIn:
    """A learner's description of the delta that it hands in."""

    id: ContributionId
    base: Version
    """The version that the learner adopted last."""
    since_step: int
    """The inner step from which the delta counts.

    It is where the interval of the id begins or, with the anchor `CURRENT`, where `base` was
    adopted.
    """
    tokens: int
    """Tokens trained in the interval of the id."""
    fingerprint: str
    """The fingerprint of the learner's layout."""
    progress: Progress
    """The learner's progress at the end of the interval."""


class PayloadKind(StrEnum):
    """The kind of content of a contribution's bytes."""

    DELTA = "delta"  # difference of the parameters to their anchor


@dataclass(frozen=True, slots=True)
class Contribution(HandIn):
    """A hand-in that a shard holds, with the shard's measurements.

    `moments_norm` is left out of the checksums on the tape, because older runs do not have it.
    """

    norm: float
    """Euclidean norm of the decoded delta; not finite if the delta is not, NaN if it has a flaw."""
    bytes: int
    """Bytes on the wire, all parts together."""
    reference: Reference
    """The name under which the shard keeps the bytes."""
    flaw: str = ""
    """The reason why the bytes do not fit the run's wire format; empty if they do."""
    payload: PayloadKind = PayloadKind.DELTA
    parts: int = 1
    """Number of parts in which it was handed in."""
    moments_norm: float | None = field(default=None, repr=False)
    """Euclidean norm of the first moments beside the delta; None if there are none."""

    @property
    def steps(self) -> int:
        """Inner steps in the interval of the id."""
        return self.id.to_step - self.id.from_step

    @property
    def spans_steps(self) -> int:
        """Inner steps that the delta spans."""
        return self.id.to_step - self.since_step

    @property
    def norm_per_step(self) -> float:
        """The norm of the delta divided by the steps that it spans."""
        return self.norm / self.spans_steps


class Fate(StrEnum):
    """The reason why a contribution, or steps never handed in, did not reach the global model."""

    OVERWRITTEN = "overwritten"
    STALE = "stale"
    GATE = "gate"
    SUPERSEDED = "superseded"
    VOID = "void"
    LOST = "lost"  # with the shard that held it; the ledger counts it as lost and has no such row


# --- events: facts that the rules receive --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """The request of a learner that is ready to step for a new life."""

    island: Island
    group: str
    """The name of the learner's group in the configuration."""
    fingerprint: str
    """The fingerprint of the learner's layout."""
    region: Region | None = None
    """The region of the corpus that the learner reads; None if its island has none."""


@dataclass(frozen=True, slots=True)
class MomentsTaken:
    """The optimizer moments with which a life began, taken from the learner of another island."""

    donor: Life
    nbytes: int
    """Bytes of the moments."""


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a learner that has finished an inner step; it serves as a heartbeat."""

    life: Life
    progress: Progress
    step_s: float
    """Seconds that an inner step takes this learner at present."""
    moments: MomentsTaken | None = None
    """In the first report of a life: what it took from a donor. For the audit; no rule reads it."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """The arrival of a contribution: the shard holds its bytes and has measured them."""

    contribution: Contribution


@dataclass(frozen=True, slots=True)
class Missing:
    """The notice that a requested hand-in will not arrive."""

    life: Life
    fragment: Fragment
    why: str
    lost: bool = False
    """Whether the learner may have sent it; if not, it reports that it has nothing to hand in."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The end of a merge: the shard has taken the outer step, and `version` is not durable yet."""

    fragment: Fragment
    version: Version
    norm: float | None = None
    """Euclidean norm of the step that the public fragment will take; None if not measured."""
    cosines: tuple[float | None, ...] = ()
    """Cosines of the contributions, in the order of the merge; None where there is no cosine.

    A merged contribution is compared with the weighted mean of the others. Contributions on trial
    follow; they are compared with the mean of all.
    """
    measured: int = 0
    """Elements from which the cosines were measured; 0 if they were not."""
    turned: float | None = None
    """Cosine of the merged delta to the outer momentum; None if not measured.

    Without momentum it is the cosine to the merged delta before.
    """
    rate: float | None = None
    """Outer learning rate that was taken; None if not measured."""
    aligned: tuple[float | None, ...] = ()
    """Cosine of each merged contribution to the direction of the outer momentum before the merge.

    It is empty if not measured.
    """


@dataclass(frozen=True, slots=True)
class Unsound:
    """A merge that must not be published, and is undone.

    The norm of its step is not finite, or above the order's limit. The shard is back at the state
    before the merge and still holds the contributions.
    """

    fragment: Fragment
    version: Version
    norm: float
    """Euclidean norm of the step."""
    spoiled: tuple[ContributionId, ...] = ()
    """Contributions whose bytes have changed since they were measured at arrival."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The end of a write: `version` may be published now."""

    fragment: Fragment
    version: Version
    durable: bool
    """Whether it is on disk; a version that is not may be published all the same."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The delivery of a publication: which lives have the version ready to be adopted."""

    fragment: Fragment
    version: Version
    after_s: tuple[tuple[Life, float], ...]
    """Each life that the publication has reached, and the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """The adoption of `version` by a learner at the step boundary `progress`.

    The steps from `from_step` on were not handed in and are overwritten. If the adoption carries
    them over, `from_step == progress.steps` and `tokens == 0`.
    """

    life: Life
    fragment: Fragment
    version: Version
    from_step: int
    """First inner step that is overwritten."""
    tokens: int
    """Tokens of the overwritten steps."""
    progress: Progress


@dataclass(frozen=True, slots=True)
class Lost:
    """The end of a life, noticed by the shell: it has died, or cannot be reached."""

    life: Life
    why: str


@dataclass(frozen=True, slots=True)
class LeaseWanted:
    """The request of a learner that comes near the end of its data."""

    life: Life


@dataclass(frozen=True, slots=True)
class Drain:
    """The order that an island hand in its remaining work and leave."""

    island: Island
    why: str


@dataclass(frozen=True, slots=True)
class Left:
    """The notice that a draining learner has handed in everything and stopped at `progress`."""

    life: Life
    progress: Progress


@dataclass(frozen=True, slots=True)
class Tick:
    """The passage of time: the alarm that `Wake` set has rung."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The order to end the run: open rounds complete, then each fragment has its last round."""

    why: str


@dataclass(frozen=True, slots=True)
class Resume:
    """The return of the syncer as a new generation."""

    generation: int
    versions: tuple[Version, ...]
    """The version of each fragment that the shards have."""


@dataclass(frozen=True, slots=True)
class ShardLost:
    """The death of the shard of these fragments, with all that it held for merges."""

    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class ShardBack:
    """The return of a shard, with the published versions of these fragments and nothing else."""

    fragments: tuple[Fragment, ...]


Event = (
    Join | Report | Arrived | Missing | Merged | Unsound | Stored | Reached | Adopted | Lost
    | LeaseWanted | Drain | Left | Tick | Stop | Resume | ShardLost | ShardBack
)  # fmt: skip


# --- messages between learner and syncer beside the events ---------------------------------------


@dataclass(frozen=True, slots=True)
class Vitals:
    """Measurements that ride along with a report; no rule reads them.

    The seconds are totals of the process, over all its lives. They add up to the time from its
    start to the last moment that they account for.
    """

    loss: float
    """Loss of the last step, in nats per token."""
    computing_s: float = 0.0
    """Seconds in which the devices computed inner steps."""
    talking_s: float = 0.0
    """Seconds of copying for the syncer between steps: on the training thread, and the devices."""
    data_s: float = 0.0
    """Seconds spent waiting for data."""
    idle_s: float = 0.0
    """Seconds spent idle: paced on purpose, parked, or barred from joining."""
    waiting_s: float = 0.0
    """Seconds of waiting for the syncer or for other islands, as in lock-step."""
    starting_s: float = 0.0
    """Seconds of imports, of reading, and of asking to join."""
    compiling_s: float = 0.0
    """Seconds of compilation."""
    restoring_s: float = 0.0
    """Seconds of fetching the model and the moments, and of putting them on the devices."""
    process: int = 0
    """The number of the process that measured; 0: the seconds are those of one life."""
    age_s: float = 0.0
    """Seconds from the start of that process to this report."""
    ideal_step_s: float = 0.0
    """Mean of the recent steps that are not anomalous; 0: no step yet."""
    step_deviation_s: float = 0.0
    """Mean deviation of the recent steps from the ideal one."""
    loss_spikes: int = 0
    """Spikes of the training loss in all lives of the process."""
    metrics: tuple[tuple[str, float], ...] = ()
    """The metrics of the last step's loss, each with its name; at most `METRICS_SENT`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The syncer's answer to a report."""

    t: int
    """The syncer step."""
    offset: int
    """Offset of this learner's clock, which is its inner steps plus the offset."""
    stopping: bool
    """Whether the run is ending."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A new version of a fragment on its way to a learner."""

    fragment: Fragment
    version: Version
    previous: Version
    """The version to whose public fragment the sent delta is added."""
    merged: tuple[ContributionId, ...]
    """Contributions that went into the version."""


class Known(NamedTuple):
    """The fate of a life's contributions to a fragment, sent along when it is asked to hand in.

    Contributions that are in neither list are not in the model, and never will be.
    """

    asked: tuple[int, int]
    """The number of deaths of the shard, and the number of its requests since the last one.

    A message with a smaller pair than one already received is void.
    """
    held: tuple[ContributionId, ...] = ()
    """Contributions that wait for a merge, or for its publication."""
    merged: tuple[ContributionId, ...] = ()
    """Contributions that are part of a public version."""


# --- effects: instructions for the shell ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer to `Join`: a life, a clock, public versions and data."""

    life: Life
    offset: int
    """Offset of the learner's clock, which is its inner steps plus the offset."""
    versions: tuple[Version, ...]
    """The public version of each fragment."""
    leases: tuple[Lease, ...]
    donors: tuple[Life, ...] = ()
    """Live learners that may be asked for their optimizer moments, best first."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a `Join` that cannot be granted now."""

    island: Island
    why: str
    retry_s: float | None = None
    """Seconds after which to retry; None: never."""


@dataclass(frozen=True, slots=True)
class Void:
    """The answer to a message of a life that is over: the learner must join again."""

    life: Life
    why: str
    distrusted: bool = False
    """Whether it must join without its optimizer moments."""


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """The answer to `LeaseWanted`."""

    life: Life
    lease: Lease


@dataclass(frozen=True, slots=True)
class Ask:
    """The order that the shard request a hand-in of the fragment from this learner."""

    life: Life
    fragment: Fragment
    last: bool = False
    """Whether the learner must stop stepping before it answers."""


class Item(NamedTuple):
    """One contribution of a merge with its weight; the weights of a merge sum to one."""

    contribution: Contribution
    weight: float


@dataclass(frozen=True, slots=True)
class Merge:
    """The order that a shard merge these contributions into the fragment, in this order.

    The shard answers `Merged`, or `Unsound` if the step is not finite or longer than `limit`.
    """

    fragment: Fragment
    version: Version
    items: tuple[Item, ...]
    why: str
    """The reason why the round was closed, for people."""
    last: bool = False
    """Whether the merged delta is taken over as it is, without the outer optimizer.

    The optimizer's momentum or state then stays unchanged. No later training could correct an outer
    step that goes less far, or further.
    """
    limit: float = math.inf
    """Largest Euclidean norm that the step may have."""
    trial: tuple[Contribution, ...] = ()
    """Contributions that are measured beside the others, and not merged."""
    measure: bool = False
    """Whether the shard must measure directions."""


@dataclass(frozen=True, slots=True)
class Store:
    """The order to make the fragment's new version durable, and then to answer `Stored`."""

    fragment: Fragment
    version: Version


@dataclass(frozen=True, slots=True)
class Publish:
    """The order to make the stored version public and to send it to these learners."""

    fragment: Fragment
    version: Version
    previous: Version
    """The version that was public before; learners add the sent delta to it."""
    to: tuple[Life, ...]
    merged: tuple[ContributionId, ...]
    """Contributions that went into the version; the publication acknowledges them."""


class Cause(StrEnum):
    """The cause for which a contribution was refused; the words beside it are for people."""

    COUNTERS = "counters"  # impossible counters
    LAYOUT = "layout"  # layout of another model
    FLAW = "flaw"  # the shard found bytes that do not fit the wire format
    BASE = "base"  # unknown base version
    STALE = "stale"  # base version too old
    NOT_FINITE = "not finite"
    NORM = "norm"  # norm far out of line with the recent ones
    MOMENTS = "moments"  # norm of the first moments out of line
    SPOILED = "spoiled"  # bytes have changed since they were measured at arrival
    LOUDEST = "loudest"  # largest norm per step of a merge that was unsound
    TRIAL = "trial"  # measured only: the island is on trial


@dataclass(frozen=True, slots=True)
class Discard:
    """The order to free the bytes of a contribution that will not be merged."""

    contribution: Contribution
    fate: Fate
    why: str
    cause: Cause | None = field(default=None, repr=False)
    """Cause for which the gate has refused it; None if it has not.

    The checksums on the tape leave it out, because older runs do not have it.
    """

    @property
    def returns_residual(self) -> bool:
        """Return whether the learner gets back the rounding error that it had added.

        A voided contribution has no learner any more, and of a repeated one the first one counts.
        """
        return self.fate in (Fate.GATE, Fate.STALE, Fate.LOST)


@dataclass(frozen=True, slots=True)
class Shift:
    """A new clock offset for this learner, after a departure made the K-th clock fall below t."""

    life: Life
    offset: int


@dataclass(frozen=True, slots=True)
class Release:
    """The order to ask this learner to hand in everything and to leave."""

    life: Life
    why: str


@dataclass(frozen=True, slots=True)
class Wake:
    """The order to send `Tick` at this time; it replaces any earlier one."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of the run: the public fragments are the result."""

    why: str


Effect = (
    Granted | Refused | Void | LeaseGranted | Ask | Merge | Store | Publish | Discard | Shift
    | Release | Wake | Finish
)  # fmt: skip
