"""The status and the summary of a run that sums gradients, with the keys of all other modes."""

from __future__ import annotations

import math

from cluster.allreduce.ring import Ring, RingMemberState, RingStage, Rules
from cluster.status import Figures, FragmentStatus, IslandState, IslandStatus, RunStatus
from cluster.syncer import run_time
from cluster.syncer.counts import Counts
from cluster.syncer.durability_text import durability_text
from cluster.syncer.report import goodput, island_hours, merge_age_s, uptime
from cluster.view import IslandView, View
from coordinator.protocol import Island
from coordinator.state import Phase


def phase_of(ring: Ring) -> Phase:
    """Return the phase of the run."""
    if ring.stage is RingStage.OVER:
        return Phase.FINISHED
    ending = ring.stopping is not None or ring.stage is RingStage.ENDING
    return Phase.STOPPING if ending else Phase.RUNNING


def _standing(ring: Ring, island: Island, lives: int) -> IslandState:
    """Return the state of an island; one without a member that had a life is lost or has left."""
    member = ring.members.get(island)
    if member is not None:
        if island in ring.leaving:
            return "draining"
        return "live" if member.turns else "joining"
    if island in ring.leaving or (lives and ring.stage is RingStage.OVER):
        return "left"
    return "lost" if lives else "starting"


def view_of(ring: Ring, counts: Counts) -> View:
    """Return the view of the run from which the fleet decides."""
    islands: dict[Island, IslandView] = {}
    for island, watched in counts.islands.items():
        member = ring.members.get(island)
        islands[island] = IslandView(
            _standing(ring, island, watched.lives),
            member.life.incarnation if member else 0,
            watched.contributions,
        )
    return View(ring.held.step, phase_of(ring), islands)


def status_of(
    run: str, rules: Rules, ring: Ring, counts: Counts, fragments: int, now_s: float
) -> RunStatus:
    """Return the current status of the run; the version of every fragment is the ring's step."""
    phase, turning = phase_of(ring), [life.island for life in ring.turning]
    tokens_per_s = sum(counts.islands[island].tokens_per_s for island in turning)
    left_s = None
    if ring.held.step > 0 and phase is Phase.RUNNING and tokens_per_s > 0:
        each = ring.held.tokens / ring.held.step  # elapsed time would mislead: a ring goes back
        left_s = (rules.steps - ring.held.step) * each / tokens_per_s
    starting = math.isnan(counts.first_s) and phase is Phase.RUNNING
    return RunStatus(
        run=run,
        t=ring.held.step,
        steps=rules.steps,
        elapsed_s=now_s - counts.began_s,
        left_s=left_s,
        phase="starting" if starting else phase.value,
        islands=[_island(ring, counts, island) for island in counts.islands],
        fragments=[
            FragmentStatus(fragment=p, version=ring.held.step, participants=[*turning], round=None)
            for p in range(fragments)
        ],
        participants=sum(counts.recent) / len(counts.recent) if counts.recent else 0.0,
        alive=len(turning),
        merges=ring.held.step,
        tokens_trained=ring.trained,
        tokens_per_s=tokens_per_s,
        heldout=counts.heldout,
        faults=counts.faults,
        wanted=len(counts.islands),
        spares=0,
        refusals={},
        failures=dict(counts.failures),
        unjudged=dict(counts.unjudged),
        figures=_figures(rules, ring, counts, now_s),
        island_hours=island_hours(counts, now_s),
    )


def _figures(rules: Rules, ring: Ring, counts: Counts, now_s: float) -> Figures:
    return Figures(
        quorum=1 if rules.elastic else rules.count,
        generation=ring.generation,
        tokens_merged=ring.held.tokens,
        tokens_discarded=0,
        tokens_lost=ring.lost,
        merge_age_s=merge_age_s(counts, now_s),
        round_s=_known(counts.round_s),
        grace_s=None,
        staleness=None,
        overlap_steps=0.0,
        outer_cosine=None,
        outer_rate=None,
        distrusted_lives=0,
        largest_share=None,
        unsound_merges=0,
        trouble=counts.not_finite,
        merges_lost=counts.merges_lost,
        not_durable=durability_text(counts.troubles),
        damage=counts.damage,
        up_bytes=counts.up_bytes,
        down_bytes=counts.down_bytes,
        goodput=goodput(counts, now_s),
        uptime=uptime(counts, now_s),
    )


def _island(ring: Ring, counts: Counts, island: Island) -> IslandStatus:
    watched, member = counts.islands[island], ring.members.get(island)
    loss = watched.vitals.loss
    return IslandStatus(
        island=island,
        group=watched.group,
        state=_standing(ring, island, watched.lives),
        incarnation=member.life.incarnation if member else 0,
        life=watched.lives,
        steps=watched.steps_before + watched.steps,
        tokens_per_s=watched.tokens_per_s,
        loss=None if math.isnan(loss) else loss,
        why=watched.refused or _why(ring, member, watched.failed),
        contributions=watched.contributions,
        cosine=None,
        restarts=max(0, watched.lives - 1),
    )


def _why(ring: Ring, member: RingMemberState | None, failed: str) -> str:
    if member is None:
        return failed or ring.broken or "its process starts"
    if not member.turns:
        return "waits for the others"
    return f"steps in ring {ring.ring}"


def summary_of(ring: Ring, counts: Counts, now_s: float) -> dict[str, object]:
    """Return the figures of a run's summary that are measured here.

    Every step of the ring is a merge, and its members are the participants. `tokens_lost` counts
    the tokens of steps that were lost with a death.
    """
    ended_s = now_s if math.isnan(counts.ended_s) else counts.ended_s
    tokens, merges = max(1, ring.trained), ring.held.step
    return {
        "tokens_trained": ring.trained,
        "tokens_merged": ring.held.tokens,
        "tokens_discarded": 0,
        "tokens_lost": ring.lost,
        "tokens_outstanding": 0,
        "merges": merges,
        "mean_participants": _mean_participants(counts, merges),
        "goodput": goodput(counts, ended_s),
        "uptime": uptime(counts, ended_s),
        "island_hours": island_hours(counts, ended_s),
        "faults": counts.faults,
        "failures": dict(counts.failures),
        "recovery_s": counts.recovery_s,
        "max_merge_gap_s": counts.max_gap_s,
        "up_bytes_per_token": counts.up_bytes / tokens,
        "down_bytes_per_token": counts.down_bytes / tokens,
        "rejected_contributions": 0,
        "effective_overlap": 0.0,  # all members wait for the mean of each step
        **run_time.summary(counts),
    }


def _mean_participants(counts: Counts, merges: int) -> float:
    """Return the mean number of members of a step; repeated steps count each time."""
    contributions = sum(watched.contributions for watched in counts.islands.values())
    steps = merges + counts.merges_lost
    return contributions / steps if steps else 0.0


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
