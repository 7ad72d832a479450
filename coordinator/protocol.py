"""All that is ever said between learners, syncer and shards: ids, versions, events, effects.

Events carry facts and opaque references, never arrays. `docs/protocol.md` says what each one means
and in which order the shell must act on effects. Times are seconds of the syncer's clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, NewType

Island = NewType("Island", str)
"""The name of a learner's devices and data for the whole run, such as `eu-3`."""
Incarnation = NewType("Incarnation", int)
"""Number of one life of a learner, granted at join, strictly growing over the whole run."""
Region = NewType("Region", str)
"""Where a part of the corpus lies that shall not be read elsewhere, such as `eu`."""
Fragment = NewType("Fragment", int)
"""Index p of a fragment, 0 <= p < P."""
Reference = NewType("Reference", str)
"""Names bytes that a shard holds; opaque to the rules."""


class Version(NamedTuple):
    """How often a fragment was merged, ordered first by the syncer's generation."""

    generation: int
    number: int

    def __str__(self) -> str:
        return f"v{self.number}" if self.generation == 0 else f"v{self.generation}.{self.number}"


class Life(NamedTuple):
    """One incarnation of one island's learner: who is speaking."""

    island: Island
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"{self.island}#{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Lease:
    """A piece of its region's shuffled corpus; `start` of its windows are already consumed.

    Each region counts its own pieces, so that a number means something within one only.
    """

    number: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one life has come, cumulative, so that losing a report costs nothing.

    `lease` is the cursor: the lease being read and the windows of it consumed so far.
    """

    steps: int
    tokens: int
    lease: Lease


class ContributionId(NamedTuple):
    """Identity of a contribution: one life's inner steps [from_step, to_step), one fragment."""

    life: Life
    fragment: Fragment
    from_step: int
    to_step: int

    def __str__(self) -> str:
        return f"{self.life}/f{self.fragment}[{self.from_step},{self.to_step})"


class Anchor(StrEnum):
    """What a contribution is the difference to, when it is merged."""

    BASE = "base"  # where its interval began, at the learner: its own progress and no more
    CURRENT = "current"  # the syncer's fragment at the merge (arXiv:2604.21428)


@dataclass(frozen=True, slots=True)
class HandIn:
    """What a learner says of the delta that it hands in.

    `base` is the version that it adopted last; `since_step` the inner step from which the delta
    counts: where the interval of the id begins, or, with the anchor `CURRENT`, where `base` was
    adopted; `tokens` were trained in that interval; `progress` is the learner's at its end.
    """

    id: ContributionId
    base: Version
    since_step: int
    tokens: int
    fingerprint: str
    progress: Progress


class PayloadKind(StrEnum):
    """What a contribution's bytes are."""

    DELTA = "delta"  # of the parameters


@dataclass(frozen=True, slots=True)
class Contribution(HandIn):
    """A hand-in that a shard holds, with what the shard has measured of it.

    `norm`: Euclidean norm of the decoded delta, not finite if the delta is not; `bytes`: on the
    wire, all together; `reference`: where the shard keeps it. `flaw`: why its bytes are not what
    the run's wire has, empty if they are; then `norm` is not a number. `parts`: in so many it was
    handed in. `moments_norm`: of the first moments beside the delta, None if there are none; no
    part of what is checksummed on the tape, which older runs have without.
    """

    norm: float
    bytes: int
    reference: Reference
    flaw: str = ""
    payload: PayloadKind = PayloadKind.DELTA
    parts: int = 1
    moments_norm: float | None = field(default=None, repr=False)

    @property
    def steps(self) -> int:
        return self.id.to_step - self.id.from_step

    @property
    def spans_steps(self) -> int:
        """How many inner steps the delta spans."""
        return self.id.to_step - self.since_step

    @property
    def norm_per_step(self) -> float:
        """The norm of the delta over the steps that it spans."""
        return self.norm / self.spans_steps


class Fate(StrEnum):
    """Why a contribution, or steps never handed in, did not reach the global model."""

    OVERWRITTEN = "overwritten"
    STALE = "stale"
    GATE = "gate"
    SUPERSEDED = "superseded"
    VOID = "void"
    LOST = "lost"  # with the shard that held it; the ledger has no such row: it calls that lost


# --- events: what happened ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """A learner, ready to step, asks for a life."""

    island: Island
    group: str
    fingerprint: str
    region: Region | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A learner finished an inner step; `step_s` is what a step takes it at present."""

    life: Life
    progress: Progress
    step_s: float


@dataclass(frozen=True, slots=True)
class Arrived:
    """The shard holds the bytes of a contribution and has measured them."""

    contribution: Contribution


@dataclass(frozen=True, slots=True)
class Missing:
    """A hand-in that was asked for will not come. `lost`: the learner may have given it; else it
    says that it has nothing to hand in."""

    life: Life
    fragment: Fragment
    why: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Merged:
    """The shard has applied the outer step: `version` exists, though not yet durably.

    `norm`: of the step that the public fragment will take, None if it was not measured. `cosines`:
    of each contribution of the merge, in its order, to the weighted mean of the others, then of
    each one on trial to the mean of all; None where there is none. `measured`: from so many
    elements; 0 if nobody has looked. `turned`: cosine of the merged delta to the outer momentum,
    which without momentum is the merged delta before; `rate`: the outer learning rate that was
    taken. Both None if that was not measured. `aligned`: cosine of each contribution of the merge
    to where the outer momentum led before it; empty if nobody has looked.
    """

    fragment: Fragment
    version: Version
    norm: float | None = None
    cosines: tuple[float | None, ...] = ()
    measured: int = 0
    turned: float | None = None
    rate: float | None = None
    aligned: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Unsound:
    """What the shard has merged must not be public: `norm` is not finite, or over the order's
    limit. The shard is at the state of before the merge again and holds the contributions.

    `spoiled`: those whose bytes are not any more what was measured when they arrived.
    """

    fragment: Fragment
    version: Version
    norm: float
    spoiled: tuple[ContributionId, ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """`version` is on disk; or not (`durable` false), and may be published all the same."""

    fragment: Fragment
    version: Version
    durable: bool


@dataclass(frozen=True, slots=True)
class Reached:
    """Whom a publication has reached, each after so many seconds: ready to be adopted there."""

    fragment: Fragment
    version: Version
    after_s: tuple[tuple[Life, float], ...]


@dataclass(frozen=True, slots=True)
class Adopted:
    """A learner took in `version` at the boundary `progress`.

    The steps from `from_step` on were not handed in and are overwritten (`tokens` of them); with
    an adoption that carries them over, `from_step == progress.steps` and `tokens == 0`.
    """

    life: Life
    fragment: Fragment
    version: Version
    from_step: int
    tokens: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class Lost:
    """The shell knows that a life has ended, or cannot be reached."""

    life: Life
    why: str


@dataclass(frozen=True, slots=True)
class LeaseWanted:
    """A learner has come near the end of its data."""

    life: Life


@dataclass(frozen=True, slots=True)
class Drain:
    """An island shall hand in what it has and leave."""

    island: Island
    why: str


@dataclass(frozen=True, slots=True)
class Left:
    """A draining learner has handed in everything and stopped at `progress`."""

    life: Life
    progress: Progress


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The run shall end: open rounds are completed, then each fragment has its last one."""

    why: str


@dataclass(frozen=True, slots=True)
class Resume:
    """The syncer is back as a new generation; `versions`: what the shard has, for each fragment."""

    generation: int
    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True)
class ShardLost:
    """The shard of these fragments is dead, and so is what it held for merges."""

    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class ShardBack:
    """It is back, with the published versions of these fragments and nothing else."""

    fragments: tuple[Fragment, ...]


Event = (
    Join | Report | Arrived | Missing | Merged | Unsound | Stored | Reached | Adopted | Lost
    | LeaseWanted | Drain | Left | Tick | Stop | Resume | ShardLost | ShardBack
)  # fmt: skip


# --- what learner and syncer say around them ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Vitals:
    """Measurements that ride along with a report; no rule reads them.

    `loss`: of the last step, nats per token. The others are seconds of this life, summed up:
    computing inner steps, serving the syncer between them (on the training thread, and on the
    devices before a step can begin), waiting for data, and idling (paced on purpose, or parked).
    """

    loss: float
    computing_s: float = 0.0
    talking_s: float = 0.0
    data_s: float = 0.0
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """To a report: the syncer step, this learner's clock offset, and whether the run is ending."""

    t: int
    offset: int
    stopping: bool


@dataclass(frozen=True, slots=True)
class Publication:
    """A new version on its way down: what to add to the public fragment of version `previous`.

    `merged` are the contributions that went into it.
    """

    fragment: Fragment
    version: Version
    previous: Version
    merged: tuple[ContributionId, ...]


class Known(NamedTuple):
    """Said to a life that is asked to hand in: what has become of its contributions to that
    fragment so far.

    `held`: they wait for a merge, or for its publication; `merged`: they are part of a public
    version. All the others are not, and never will be. `asked`: how often the shard had died, and
    asked since; what was said before something that was heard already is void.
    """

    asked: tuple[int, int]
    held: tuple[ContributionId, ...] = ()
    merged: tuple[ContributionId, ...] = ()


# --- effects: what the shell must do --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """Answer to `Join`: a life, a clock (steps + offset), public versions, and data.

    `donors`: live learners that may be asked for their optimizer moments, best first.
    """

    life: Life
    offset: int
    versions: tuple[Version, ...]
    leases: tuple[Lease, ...]
    donors: tuple[Life, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer to `Join`: not as things are; ask again in `retry_s` (None: never)."""

    island: Island
    why: str
    retry_s: float | None = None


@dataclass(frozen=True, slots=True)
class Void:
    """Answer to words of a life that is over: join again, without the moments if `distrusted`."""

    life: Life
    why: str
    distrusted: bool = False


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """Answer to `LeaseWanted`."""

    life: Life
    lease: Lease


@dataclass(frozen=True, slots=True)
class Ask:
    """Have the shard call this learner for what it has trained on the fragment.

    `last`: have it step no more before it answers.
    """

    life: Life
    fragment: Fragment
    last: bool = False


class Item(NamedTuple):
    """One contribution of a merge and its share; the shares of a merge sum to one."""

    contribution: Contribution
    weight: float


@dataclass(frozen=True, slots=True)
class Merge:
    """Apply these contributions to the fragment, in this order; answer `Merged`, or `Unsound` if
    the step that comes out is not finite or longer than `limit`.

    `trial`: contributions that are measured beside the others, and not merged. `measure`: whether
    directions are wanted.

    `last`: the merged delta is taken over as it is, whatever the outer optimizer of the run, whose
    momentum or state stays what it was: nothing is trained any more that could make up for a step
    that goes less far, or further.
    """

    fragment: Fragment
    version: Version
    items: tuple[Item, ...]
    why: str
    last: bool = False
    limit: float = math.inf
    trial: tuple[Contribution, ...] = ()
    measure: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """Make the fragment's new version durable, then answer `Stored`."""

    fragment: Fragment
    version: Version


@dataclass(frozen=True, slots=True)
class Publish:
    """Send the stored version to these learners; `merged` acknowledges what went into it."""

    fragment: Fragment
    version: Version
    previous: Version
    to: tuple[Life, ...]
    merged: tuple[ContributionId, ...]


class Cause(StrEnum):
    """Why a contribution was not fit to be merged; the words beside it are for people."""

    COUNTERS = "counters"  # that cannot be
    LAYOUT = "layout"  # of another model
    FLAW = "flaw"  # what the shard has found in its bytes
    BASE = "base"  # a version that is not known
    STALE = "stale"
    NOT_FINITE = "not finite"
    NORM = "norm"  # far out of line with the recent ones
    MOMENTS = "moments"  # whose norm is so
    SPOILED = "spoiled"  # other bytes than were measured when it came
    LOUDEST = "loudest"  # of a merge that was not sound
    TRIAL = "trial"  # measured, and of an island that is not trusted yet


@dataclass(frozen=True, slots=True)
class Discard:
    """Free these bytes. `cause`: where the gate has refused them; no part of what is checksummed on
    the tape, which older runs have without."""

    contribution: Contribution
    fate: Fate
    why: str
    cause: Cause | None = field(default=None, repr=False)

    @property
    def returns_residual(self) -> bool:
        """Will it not be merged, so that its learner gets back what it took along?

        What was voided has no learner any more, and of what was said twice the first one counts.
        """
        return self.fate in (Fate.GATE, Fate.STALE, Fate.LOST)


@dataclass(frozen=True, slots=True)
class Shift:
    """A departure made the clock fall short: this learner's offset is now `offset`."""

    life: Life
    offset: int


@dataclass(frozen=True, slots=True)
class Release:
    """Ask this learner to hand in everything and to leave."""

    life: Life
    why: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Send `Tick` at this time; replaces an earlier wish."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The public fragments are the result; end the run."""

    why: str


Effect = (
    Granted | Refused | Void | LeaseGranted | Ask | Merge | Store | Publish | Discard | Shift
    | Release | Wake | Finish
)  # fmt: skip
