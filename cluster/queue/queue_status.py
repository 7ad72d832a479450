"""The table of the queue that people see."""

from __future__ import annotations

from typing import TypedDict

from cluster.queue.facts import QueueFacts
from coordinator.queue_claims import Decision, QueueVerdict, RunClaim, Standing


class QueuedRunRow(TypedDict):
    """One run in the table."""

    run: str
    owner: str
    priority: int
    state: str
    """queued, refused, starting or live."""
    held: int
    """Islands that hold machines."""
    wanted: int
    """Islands that the run should have."""
    withheld: list[str]
    """Islands that the run does without, because others need the machines."""
    why: str
    """The reason why it waits, or why it does without islands; empty if neither."""


class QuotaRow(TypedDict):
    """One limit of one owner."""

    owner: str
    name: str
    """The resource, or "islands"."""
    used: float
    """The amount that islands hold."""
    limit: float


class QueueStatus(TypedDict):
    """The queue of a cluster at its last look."""

    runs: list[QueuedRunRow]
    """All runs, the most important first."""
    quotas: list[QuotaRow]
    """The limits of owners that have runs."""
    trouble: str | None
    """The reason why the last look failed; None if it did not."""


def queue_status(seen: QueueFacts, now: Decision) -> QueueStatus:
    """Return the table after a look."""
    ranked = sorted(seen.claims, key=lambda claim: claim.rank)
    return QueueStatus(
        runs=[_row(claim, seen, now) for claim in ranked],
        quotas=[
            QuotaRow(owner=owner, name=name, used=_used(seen, owner, name), limit=limit)
            for owner, limits in sorted(seen.quotas.items())
            for name, limit in sorted(limits.items())
        ],
        trouble=None,
    )


def _row(claim: RunClaim, seen: QueueFacts, now: Decision) -> QueuedRunRow:
    withheld = now.withheld.get(claim.run, {}) if claim.standing is Standing.LIVE else {}
    answer = now.answers.get(claim.run)
    state, why = claim.standing.value, ""
    if answer is not None:
        why = answer.why
        state = "refused" if answer.verdict is QueueVerdict.REFUSE else state
    elif withheld:
        known = {each["island"]: each["withheld"] for each in seen.messages[claim.run]["islands"]}
        first = next(iter(withheld))
        why = known.get(first) or withheld[first]
    return QueuedRunRow(
        run=claim.run,
        owner=claim.owner,
        priority=claim.priority,
        state=state,
        held=sum(bool(each.holds) for each in claim.islands),
        wanted=len(claim.islands),
        withheld=sorted(withheld),
        why=why,
    )


def _used(seen: QueueFacts, owner: str, name: str) -> float:
    return sum(
        each.need.counted.get(name, 0.0)
        for claim in seen.claims
        if claim.owner == owner
        for each in claim.islands
        if each.holds
    )
