"""The reports on a run that are available at any time: its status, its view, its final figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cluster.status import Figures, FragmentStatus, IslandStatus, RoundStatus, RunStatus
from cluster.syncer.counts import Counts
from cluster.syncer.durability_text import durability_text
from cluster.view import IslandView, View
from coordinator import ledger
from coordinator.membership import SPEAKING, Member
from coordinator.membership import Status as Standing
from coordinator.protocol import (
    Island,
)
from coordinator.state import Phase, Rule, Stage, State

HOUR_S = 3600.0


def view_of(counts: Counts, state: State) -> View:
    """Return the facts from which the fleet decides."""
    islands = {
        island: IslandView(
            member.status.value if (member := state.members.get(island)) else "starting",
            member.life.incarnation if member else 0,
            watched.contributions,
        )
        for island, watched in counts.islands.items()
    }
    return View(state.t, state.phase, islands)


def status_of(
    run: str, sizes: Sequence[int], counts: Counts, rule: Rule, state: State, now_s: float
) -> RunStatus:
    """Return the present status of the run."""
    running_s = now_s - counts.first_s
    left_s = None
    if state.t > 0 and state.phase is Phase.RUNNING:
        left_s = running_s * (rule.steps - state.t) / state.t
    starting = math.isnan(counts.first_s) and state.phase is Phase.RUNNING
    alive = sum(m.status is Standing.LIVE for m in state.members.values())
    return RunStatus(
        run=run,
        t=state.t,
        steps=rule.steps,
        elapsed_s=now_s - counts.began_s,
        left_s=left_s,
        phase="starting" if starting else state.phase.value,
        islands=[_island(counts, state, island) for island in counts.islands],
        fragments=[_fragment(state, p) for p in range(len(state.fragments))],
        participants=sum(counts.recent) / len(counts.recent) if counts.recent else 0.0,
        alive=alive,
        merges=state.merges,
        tokens_trained=state.ledger.trained,
        tokens_per_s=sum(
            counts.islands[m.life.island].tokens_per_s
            for m in state.members.values()
            if m.status is Standing.LIVE
        ),
        heldout=counts.heldout,
        faults=counts.faults,
        wanted=len(counts.islands),
        spares=0,
        refusals=dict(counts.refusals),
        failures=dict(counts.failures),
        unjudged=dict(counts.unjudged),
        island_hours=island_hours(counts, now_s),
        shards_lost=counts.shards_lost,
        figures=_figures(sizes, counts, rule, state, now_s),
    )


def _figures(
    sizes: Sequence[int], counts: Counts, rule: Rule, state: State, now_s: float
) -> Figures:
    totals = ledger.totals(state.ledger, sizes)
    return Figures(
        quorum=rule.min_quorum,
        generation=state.generation,
        tokens_merged=totals.merged,
        tokens_discarded=totals.discarded,
        tokens_lost=totals.lost,
        merge_age_s=merge_age_s(counts, now_s),
        round_s=_known(counts.round_s),
        grace_s=_known(counts.grace_s),
        staleness=_known(counts.staleness),
        overlap_steps=effective_overlap(counts),
        outer_cosine=_known(counts.outer_cosine),
        outer_rate=_known(counts.outer_rate),
        distrusted_lives=counts.distrusted,
        largest_share=_known(counts.largest_share),
        unsound_merges=counts.unsound,
        trouble="; ".join(filter(None, [counts.not_finite, *counts.jumps.values()])),
        merges_lost=counts.merges_lost,
        not_durable=durability_text(counts.troubles),
        damage=counts.damage,
        up_bytes=counts.up_bytes,
        down_bytes=counts.down_bytes,
        goodput=goodput(counts, now_s),
        uptime=uptime(counts, now_s),
    )


def goodput(counts: Counts, now_s: float) -> float:
    """Return the share of the granted island-seconds that was spent computing."""
    granted_s = counts.held_s + len(counts.holding) * (now_s - counts.held_since_s)
    computing_s = sum(w.computing_before_s + w.vitals.computing_s for w in counts.islands.values())
    return computing_s / granted_s if granted_s > 0 else 0.0


def merge_age_s(counts: Counts, now_s: float) -> float | None:
    """Return the seconds since the last merge, or since the first inner step before the first.

    Return None before the first inner step.
    """
    is_first = math.isnan(counts.merged_s)
    return _known(now_s - (counts.first_s if is_first else counts.merged_s))


def island_hours(counts: Counts, now_s: float) -> dict[str, float]:
    """Return the hours for which the islands of each group have held their devices."""
    seconds = dict(counts.held_by_group)
    for island in counts.holding:
        group = counts.islands[island].group
        seconds[group] = seconds.get(group, 0.0) + now_s - counts.held_since_s
    return {group: held_s / HOUR_S for group, held_s in sorted(seconds.items())}


def effective_overlap(counts: Counts) -> float | None:
    """Return the mean number of steps from a hand-in to its adoption; None before the first."""
    return counts.steps_to_adoption / counts.adoptions if counts.adoptions else None


def uptime(counts: Counts, now_s: float) -> float:
    """Return the share of the time from first step to stop in which some learner advanced."""
    until_s = now_s if math.isnan(counts.stopping_s) else counts.stopping_s
    up_s = sum(min(stop, until_s) - min(start, until_s) for start, stop in counts.up_spans)
    up_s += counts.up_before_s
    whole_s = until_s - counts.first_s
    return round(up_s / whole_s, 4) if whole_s > 0 else 0.0


def _island(counts: Counts, state: State, island: Island) -> IslandStatus:
    watched, member = counts.islands[island], state.members.get(island)
    loss = watched.vitals.loss
    why = watched.refused or (_why(member) if member else "its process starts")
    if watched.failed and watched.failed not in why and _may_come_back(member):
        why = f"{why}, after {watched.failed}"
    return IslandStatus(
        island=island,
        group=member.group if member else watched.group,
        state=member.status.value if member else "starting",
        incarnation=member.life.incarnation if member else 0,
        life=watched.lives,
        steps=watched.steps_before + watched.steps,
        tokens_per_s=watched.tokens_per_s,
        loss=None if math.isnan(loss) else loss,
        why=why,
        contributions=watched.contributions,
        cosine=watched.cosine,
        restarts=max(0, watched.lives - 1),
    )


def _may_come_back(member: Member | None) -> bool:
    return member is None or member.status in SPEAKING or member.status is Standing.LOST


def summary_of(
    sizes: Sequence[int], counts: Counts, state: State, now_s: float
) -> dict[str, object]:
    """Return those final figures of the run that the syncer measures."""
    totals = ledger.totals(state.ledger, sizes)
    ended_s = now_s if math.isnan(counts.ended_s) else counts.ended_s
    tokens = max(1, totals.trained)
    return {
        "tokens_trained": totals.trained,
        "tokens_merged": totals.merged,
        "tokens_discarded": totals.discarded,
        "tokens_lost": totals.lost,
        "tokens_outstanding": totals.outstanding,
        "merges": state.merges,
        "mean_participants": state.participations / state.merges if state.merges else 0.0,
        "goodput": goodput(counts, ended_s),
        "uptime": uptime(counts, ended_s),
        "island_hours": island_hours(counts, ended_s),
        "faults": counts.faults,
        "failures": dict(counts.failures),
        "recovery_s": counts.recovery_s,
        "max_merge_gap_s": counts.max_gap_s,
        "paused_s": counts.paused_s,
        "up_bytes_per_token": counts.up_bytes / tokens,
        "down_bytes_per_token": counts.down_bytes / tokens,
        "rejected_contributions": counts.refusals.total(),
        "effective_overlap": effective_overlap(counts),
    }


def _why(member: Member) -> str:
    """Return why an island is in its state.

    An island on trial trains on, but no contribution of it is merged.
    """
    if not member.trial or member.status not in SPEAKING:
        return member.why
    return f"on trial: {member.trial} more that do not point against the others"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _fragment(state: State, p: int) -> FragmentStatus:
    fragment = state.fragments[p]
    round_ = fragment.round
    shown = None
    if round_ is not None:
        why = round_.why if round_.stage is Stage.OPEN else round_.stage.value
        shown = RoundStatus(arrived=len(round_.arrived), asked=len(round_.called), why=why)
    return FragmentStatus(
        fragment=p,
        version=fragment.version.number,
        participants=list(fragment.participants),
        round=shown,
    )
