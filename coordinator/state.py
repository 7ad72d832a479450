"""The syncer's whole mind: the rules' parameters, and the one frozen value that they turn over."""

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

EDITION = 1
"""The newest edition of the rules. Edition 0 believes what an island says of its own progress. A
tape names the edition that answered its events, and a run keeps the one that it began with."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a run is configured to do; constant over the run.

    `steps`: T in syncer steps. `grace_s`: None = adaptive. `overlap`: tau in inner steps, 0 = the
    learners wait for adoption; if `overlap_follows`, that is the least of what a round takes.
    `lease_windows`: length of a lease. `watch`: what follows from a learner's direction.
    `edition`: which rules answer (`EDITION`). `batches`: windows that a learner of each group reads
    in one step, 0 if its cursor is not to be looked at. `window_tokens`: the most tokens that a
    window can have, 0 if that is not known.
    """

    schedule: Schedule
    fingerprint: str
    steps: int
    min_quorum: int
    grace_s: float | None
    overlap: int
    max_staleness: int
    lease_windows: int
    watch: Watch
    overlap_follows: bool = False
    edition: int = EDITION
    batches: tuple[tuple[str, int], ...] = ()
    window_tokens: int = 0

    @property
    def bounded(self) -> bool:
        """Whether the words of an island are held to what it can have done (edition 1)."""
        return self.edition >= 1

    def batch_of(self, group: str) -> int:
        """Windows that a learner of this group reads in one step; 1 if that is not known."""
        return next((windows for name, windows in self.batches if name == group), 1)


class Phase(StrEnum):
    """Of the run as a whole."""

    RUNNING = "running"
    STOPPING = "stopping"  # open rounds are completed, then each fragment has its last one
    FINISHED = "finished"


class Stage(StrEnum):
    """Of one round."""

    OPEN = "open"  # contributions arrive
    MERGING = "merging"  # closed; the shard computes
    STORING = "storing"  # merged; on its way to the disk


@dataclass(frozen=True, slots=True)
class Round:
    """One fragment, one version, from opening to publication.

    `called`: lives that were asked, each once; `arrived`: islands that delivered since the opening;
    `items`: what is being merged; `trial`: what is measured beside it; `last`: it was opened
    because the run ends.
    """

    version: Version
    opened_s: float
    stage: Stage = Stage.OPEN
    called: frozenset[Life] = frozenset()
    arrived: frozenset[Island] = frozenset()
    quorum_since_s: float | None = None
    closed_s: float | None = None
    items: tuple[Contribution, ...] = ()
    trial: tuple[Contribution, ...] = ()
    why: str = "opened"
    last: bool = False


@dataclass(frozen=True, slots=True)
class FragmentState:
    """One fragment: its published version and what is under way for the next one.

    `due`: a round shall open as soon as none is under way. `asked`: hand-ins that were requested
    and not answered; they outlast a round. `inbox`: admitted contributions not yet merged.
    `norms`: of recently admitted contributions; `moments`: of the first moments beside them, each
    over one step. `outliers`: islands whose norm was refused since;
    `voters`: who had a vote on what is usual when the first of them was. `moves`: norms of the
    steps that the fragment took of late. `participants`: of the last merge. `away`: its shard is
    dead, no round can be. `void`: versions since the last publication that died with their shard or
    were not sound; their numbers are not used again.
    """

    version: Version
    due: bool = False
    round: Round | None = None
    asked: Mapping[Island, Life] = field(default_factory=dict[Island, Life])
    inbox: tuple[Contribution, ...] = ()
    norms: Norms = NONE
    moments: Norms = NONE
    outliers: frozenset[Island] = frozenset()
    voters: frozenset[Island] = frozenset()
    moves: Norms = NONE
    participants: tuple[Island, ...] = ()
    away: bool = False
    void: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """All that the rules remember between two events.

    `t` is the syncer step; `generation` counts the lives of the syncer, from 0; `ending_s`: since
    when the run is ending.
    """

    t: int
    generation: int
    phase: Phase
    why: str
    next_incarnation: Incarnation
    members: Roster
    fragments: tuple[FragmentState, ...]
    pace: Pace
    leases: Pools
    ledger: Ledger
    merges: int = 0
    participations: int = 0
    wake_s: float | None = None
    ending_s: float | None = None


def is_open(fragment: FragmentState) -> bool:
    """Is there a round in which contributions arrive?"""
    return fragment.round is not None and fragment.round.stage is Stage.OPEN


Step = tuple[State, tuple[Effect, ...]]
"""What a rule answers: the new state, and what the shell must do, in this order."""


def initial(rule: Rule, *, generation: int = 0) -> State:
    """Before the first learner joins: every fragment at number 0 of this generation."""
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
    return replace(state, members=state.members.put(member))


def with_pool(state: State, region: Region | None, pool: Pool) -> State:
    return replace(state, leases={**state.leases, region: pool})


def with_fragment(state: State, p: Fragment, fragment: FragmentState) -> State:
    fragments = (*state.fragments[:p], fragment, *state.fragments[p + 1 :])
    return replace(state, fragments=fragments)


def in_order(members: Members) -> list[Member]:
    """Members by island name: the order in which effects speak to them."""
    return [members[island] for island in sorted(members)]


def validate(rule: Rule, state: State) -> None:
    """Every invariant that can be read off one state; `docs/invariants.md` names them all.

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
