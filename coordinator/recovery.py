"""The syncer comes back: what holds of the state that the tape gives, and what is void."""

from __future__ import annotations

from coordinator import ledger, lives
from coordinator.frozen import replace
from coordinator.grace import Pace
from coordinator.protocol import Resume
from coordinator.state import FragmentState, Phase, Rule, Stage, State, with_member


def resume(rule: Rule, state: State, event: Resume) -> State:
    """Go on as generation `event.generation`, at the versions that the shard still has.

    Every life is over (learners go on stepping and join again) and every round under way is void.
    What the shard held for a merge died with the generation: lost, like work that was never handed
    in; and so is what it had merged into a version that was not public yet.
    t, incarnations, leases and the ledger go on, so nothing that was promised is promised twice.
    """
    for member in tuple(state.members.values()):
        state = lives.lose(rule, state, member.life, "the syncer has restarted")
    for member in state.members.values():  # times of a clock that may be another one now
        state = with_member(state, replace(member, barred_s=0.0))
    running = state.phase is Phase.RUNNING
    accounts, merges, participations = state.ledger, state.merges, state.participations
    for fragment in state.fragments:
        items = fragment.round.items if fragment.round else ()
        if fragment.round is not None and fragment.round.stage is Stage.STORING:
            for contribution in items:
                accounts = ledger.unmerge(accounts, contribution)
            merges, participations = merges - 1, participations - len(fragment.participants)
        for contribution in (*fragment.inbox, *items):
            accounts = ledger.forget(accounts, contribution)
    fragments = tuple(
        FragmentState(
            version=version,
            due=fragment.due or fragment.round is not None,
            norms=fragment.norms,
            participants=fragment.participants,
        )
        for fragment, version in zip(state.fragments, event.versions, strict=True)
    )
    return replace(
        state,
        generation=event.generation,
        why=f"resumed as generation {event.generation}" if running else state.why,
        fragments=fragments,
        pace=Pace(),
        ledger=accounts,
        merges=merges,
        participations=participations,
        wake_s=None,
    )
