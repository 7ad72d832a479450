"""The restart of the syncer or of a shard: what remains valid of the state, and what is void."""

from __future__ import annotations

from coordinator import ledger, lives
from coordinator.frozen import replace
from coordinator.grace import Pace
from coordinator.protocol import (
    Contribution,
    Discard,
    Fate,
    Fragment,
    Island,
    Resume,
    ShardBack,
    ShardLost,
)
from coordinator.state import (
    FragmentState,
    Phase,
    Rule,
    Stage,
    State,
    StateStep,
    with_fragment,
    with_member,
)


def resume(rule: Rule, state: State, event: Resume) -> State:
    """Continue as generation `event.generation`, at the versions that the shards still have.

    Every life is over (learners keep stepping and join again) and every round under way is void.
    Contributions that a shard held are lost, like work that was never handed in. So are those
    merged into a version that was not public yet. t, incarnations, leases and the ledger are kept,
    so nothing that was promised is promised twice.
    """
    for member in tuple(state.members.values()):
        state = lives.lose(rule, state, member.life, "the syncer has restarted")
    for member in state.members.values():  # times of the former clock
        state = with_member(state, replace(member, barred_s=0.0))
    running = state.phase is Phase.RUNNING
    for p, version in enumerate(event.versions):
        fragment = Fragment(p)
        state, _ = _without_round(state, fragment)
        kept = replace(state.fragments[p], version=version, away=False, void=0)
        empty = frozenset[Island]()
        state = with_fragment(state, fragment, replace(kept, outliers=empty, voters=empty))
    return replace(
        state,
        generation=event.generation,
        why=f"resumed as generation {event.generation}" if running else state.why,
        pace=Pace(),
        wake_s=None,
    )


def shard_lost(state: State, event: ShardLost) -> StateStep:
    """Void the rounds of the dead shard's fragments, and account its contributions as lost.

    Learners stay live and get back the error-feedback residual of their lost contributions.
    """
    discards: tuple[Discard, ...] = ()
    for p in event.fragments:
        if not state.fragments[p].away:
            state, contributions = _without_round(state, p)
            state = with_fragment(state, p, replace(state.fragments[p], away=True))
            why = "the shard that held it has died"
            discards += tuple(Discard(c, Fate.LOST, why) for c in contributions)
    return state, discards


def shard_back(state: State, event: ShardBack) -> State:
    """Mark the fragments' shard as alive; rounds that became due meanwhile open next."""
    for p in event.fragments:
        state = with_fragment(state, p, replace(state.fragments[p], away=False))
    return state


def _without_round(state: State, p: Fragment) -> tuple[State, tuple[Contribution, ...]]:
    """Void the fragment's round and make it due again; return its contributions, which are lost.

    They include those merged into a version that was not public yet.
    """
    fragment, round_ = state.fragments[p], state.fragments[p].round
    accounts, merges, participations = state.ledger, state.merges, state.participations
    items = () if round_ is None else round_.items
    if round_ is not None and round_.stage is Stage.STORING:
        for contribution in items:
            accounts = ledger.unmerge(accounts, contribution)
        merges, participations = merges - 1, participations - len(fragment.participants)
    trial = () if round_ is None else round_.trial
    contributions = (*fragment.inbox, *items, *trial)
    for contribution in contributions:
        accounts = ledger.forget(accounts, contribution)
    state = replace(state, ledger=accounts, merges=merges, participations=participations)
    remains = FragmentState(
        version=fragment.version,
        due=fragment.due or round_ is not None,
        norms=fragment.norms,
        moments=fragment.moments,
        outliers=fragment.outliers,
        voters=fragment.voters,
        moves=fragment.moves,
        participants=fragment.participants,
        away=fragment.away,
        void=fragment.void + (round_ is not None and round_.stage is not Stage.OPEN),
    )
    return with_fragment(state, p, remains), contributions
