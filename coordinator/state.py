"""The syncer's state, one frozen value, and the rules' parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coordinator import ledger
from coordinator.direction_gate import Watch
from coordinator.errors import BrokenInvariant
from coordinator.frozen import replace
from coordinator.grace import Pace
from coordinator.leases import Pool, Pools
from coordinator.ledger import Ledger
from coordinator.membership import SPEAKING, Member, Members
from coordinator.norms import NONE, Norms
from coordinator.protocol import (
    Contribution,
    Effect,
    Fragment,
    Incarnation,
    Island,
    Life,
    Region,
    Version,
)
from coordinator.roster import Roster
from coordinator.schedule import Schedule

EDITION = 4
"""The newest edition of the rules.

Edition 0 accepts an island's reports of its own progress unchecked; edition 1 does not. Edition 2
compares an island's norms with its own, too, where the others cannot outvote one bad island, and
ends a learner whose hand-in is accounted for already if all wait for it (overlap 0), and needs
fewer merges to notice that one of two islands points the wrong way if there are few fragments.
Edition 3 compares norms with the newest ones of each island only, and after a quarantine for norms
a strict limit applies to the island's next contributions. Edition 4 bounds the tokens in a window,
where their number is unknown, by those of other islands and of the life's first report.

A tape names the edition that answered its events, and a run keeps the edition that it began with.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """The configuration of the rules, constant over a run."""

    schedule: Schedule
    fingerprint: str
    """The fingerprint of the run's layout."""
    steps: int
    """Length of the run: T in syncer steps."""
    min_quorum: int
    """Islands that a merge needs: K."""
    grace_s: float | None
    """Length of the grace window in seconds; None: adaptive."""
    overlap: int
    """Overlap in inner steps (tau); 0: learners wait for adoption."""
    max_staleness: int
    """Versions that the base of a contribution may be behind the public one."""
    lease_windows: int
    """Windows in a lease."""
    watch: Watch
    """The consequence of a learner's direction."""
    overlap_follows: bool = False
    """Whether the overlap is as long as a round takes; `overlap` is then its minimum."""
    edition: int = EDITION
    """The edition of the rules that answers events, see `EDITION`."""
    batches: tuple[tuple[str, int], ...] = ()
    """Windows that a learner of each group reads in one step; 0 if its cursor is not checked."""
    window_tokens: int = 0
    """Largest number of tokens that a window can have; 0 if unknown."""

    @property
    def bounded(self) -> bool:
        """Whether claims beyond an island's possible progress are refused (edition 1)."""
        return self.edition >= 1

    def batch_of(self, group: str) -> int:
        """Return the windows that a learner of this group reads in one step; 1 if unknown."""
        return next((windows for name, windows in self.batches if name == group), 1)


class Phase(StrEnum):
    """The phase of the run as a whole."""

    RUNNING = "running"
    STOPPING = "stopping"  # open rounds are completed, then each fragment has its last one
    FINISHED = "finished"


class Stage(StrEnum):
    """The stage of one round."""

    OPEN = "open"  # contributions arrive
    MERGING = "merging"  # closed; the shard computes
    STORING = "storing"  # merged; the version is being written


@dataclass(frozen=True, slots=True)
class Round:
    """One round: one fragment and one version, from opening to publication."""

    version: Version
    opened_s: float
    stage: Stage = Stage.OPEN
    called: frozenset[Life] = frozenset()
    """Lives that were asked, each once."""
    arrived: frozenset[Island] = frozenset()
    """Islands that have delivered since the opening."""
    quorum_since_s: float | None = None
    """Time at which the quorum was reached."""
    closed_s: float | None = None
    items: tuple[Contribution, ...] = ()
    """Contributions that are being merged."""
    trial: tuple[Contribution, ...] = ()
    """Contributions that are measured beside the merge, and not merged."""
    why: str = "opened"
    """The reason of the latest verdict on the round, in words."""
    last: bool = False
    """Whether it was opened because the run ends."""


@dataclass(frozen=True, slots=True)
class FragmentState:
    """One fragment: its published version, and the work on the next one."""

    version: Version
    """The published version."""
    due: bool = False
    """Whether a round must open as soon as none is under way."""
    round: Round | None = None
    asked: Mapping[Island, Life] = field(default_factory=dict[Island, Life])
    """Requested hand-ins that were not answered yet; they outlast a round."""
    inbox: tuple[Contribution, ...] = ()
    """Admitted contributions that are not merged yet."""
    norms: Norms = NONE
    """Norms of recently admitted contributions."""
    moments: Norms = NONE
    """Norms of the first moments beside them, each over one step."""
    outliers: frozenset[Island] = frozenset()
    """Islands whose norm was refused since the last admission."""
    voters: frozenset[Island] = frozenset()
    """Islands that had a vote on the usual norms when the first outlier was refused."""
    moves: Norms = NONE
    """Norms of the recent steps of the public fragment."""
    participants: tuple[Island, ...] = ()
    """Islands that took part in the last merge."""
    away: bool = False
    """Whether its shard is dead; no round can be open then."""
    void: int = 0
    """Versions since the last publication that died with their shard or were unsound.

    Their numbers are not reused.
    """


@dataclass(frozen=True, slots=True)
class State:
    """The state of the rules between two events."""

    t: int
    """The syncer step."""
    generation: int
    """Number of restarts of the syncer."""
    phase: Phase
    why: str
    """The reason for the phase, in words."""
    next_incarnation: Incarnation
    members: Roster
    """All members, including those whose life is over."""
    fragments: tuple[FragmentState, ...]
    pace: Pace
    """Moving averages of the times in a round."""
    leases: Pools
    """The pool of leases of each region."""
    ledger: Ledger
    merges: int = 0
    """Merges of the run so far."""
    participations: int = 0
    """Islands that took part, summed over those merges."""
    wake_s: float | None = None
    """Time of the alarm that was set last; None if there is none."""
    ending_s: float | None = None
    """Time at which the run began to end; None before that."""


def is_open(fragment: FragmentState) -> bool:
    """Return whether the fragment has a round in which contributions arrive."""
    return fragment.round is not None and fragment.round.stage is Stage.OPEN


StateStep = tuple[State, tuple[Effect, ...]]
"""The answer of a rule: the new state, and the effects that the shell must carry out in order."""


def initial(rule: Rule, *, generation: int = 0) -> State:
    """Return the state before the first join: every fragment is at number 0 of this generation."""
    blank = FragmentState(Version(generation, 0))
    return State(
        t=0,
        generation=generation,
        phase=Phase.RUNNING,
        why="started",
        next_incarnation=Incarnation(1),
        members=Roster(),
        fragments=(blank,) * rule.schedule.fragments,
        pace=Pace(),
        leases={},
        ledger=ledger.empty(rule.schedule.fragments),
    )


def with_member(state: State, member: Member) -> State:
    """Return the state with this member in place of the one of its island."""
    return replace(state, members=state.members.put(member))


def with_pool(state: State, region: Region | None, pool: Pool) -> State:
    """Return the state with this pool of leases for the region."""
    return replace(state, leases={**state.leases, region: pool})


def with_fragment(state: State, p: Fragment, fragment: FragmentState) -> State:
    """Return the state with fragment `p` replaced."""
    fragments = (*state.fragments[:p], fragment, *state.fragments[p + 1 :])
    return replace(state, fragments=fragments)


def in_order(members: Members) -> list[Member]:
    """Return the members by island name: the order in which effects address them."""
    return [members[island] for island in sorted(members)]


def validate(rule: Rule, state: State) -> None:
    """Check every invariant that one state shows; `docs/explanation/invariants.md` names them all.

    Errors: `BrokenInvariant`, a defect of the rules.
    """
    ledger.validate(state.ledger)
    lives = {m.life for m in state.members.values() if m.status in SPEAKING}
    if lives != set(state.ledger.accounts):
        raise BrokenInvariant(f"accounts of {set(state.ledger.accounts)}, but alive are {lives}")
    for p, fragment in enumerate(state.fragments):
        if fragment.away and (fragment.round or fragment.inbox or fragment.asked):
            raise BrokenInvariant(f"fragment {p} is under way without its shard: {fragment}")
        if fragment.round is None and not fragment.inbox and not fragment.asked:
            if state.ledger.rows[p].held:
                raise BrokenInvariant(f"fragment {p}: nothing is in hand, the ledger disagrees")
            continue
        items, trial = (fragment.round.items, fragment.round.trial) if fragment.round else ((), ())
        merging = fragment.round is not None and fragment.round.stage is Stage.MERGING
        in_hand = (*fragment.inbox, *(items if merging else ()), *trial)
        held = sum([c.tokens for c in in_hand])
        if held != state.ledger.rows[p].held:
            raise BrokenInvariant(f"fragment {p}: {held} tokens in hand, the ledger disagrees")
        if fragment.inbox or items:
            ids = [c.id for c in (*fragment.inbox, *items, *trial)]
            if len(ids) != len(set(ids)):
                raise BrokenInvariant(f"fragment {p} holds a contribution twice: {ids}")
            if items and len({c.id.life.island for c in items}) < rule.min_quorum:
                raise BrokenInvariant(f"fragment {p} merges under the quorum: {ids}")
        if fragment.asked and (strangers := set(fragment.asked.values()) - lives):
            raise BrokenInvariant(f"fragment {p} waits for {strangers}, which are over")
