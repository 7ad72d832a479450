"""The queue of a cluster: which submitted run starts, which one waits, which islands are taken.

`decide` is given all runs of a cluster, the quotas and the machines. The rules are:

- Runs come in order of priority, and those of one priority in order of submission.
- A run starts once its required islands have room and quota.
- If they have none, takeable islands of runs with a lower priority are taken, if that is enough.
  Takeable are the islands of opportunistic groups; they hand in their work first. All other islands
  of a live run are its own until its end.
- If the nodes of the cluster could never hold all required islands at once, the takeable ones do
  not count as required: the run starts, and they wait at Ray, whose autoscaler can add nodes.
- While a run waits, no run after it starts on the machines that it waits for, unless all required
  islands of that run are takeable.
- An island that was taken comes back as soon as there is room. If no node is left that could hold
  it, it waits at Ray.

The decision depends on its arguments only. The actor that carries it out may die at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordinator.machine_room import Amounts, Need
from coordinator.protocol import Island
from coordinator.queue_claims import (
    ClaimedIsland,
    Decision,
    QueueAnswer,
    QueueVerdict,
    RunClaim,
    Standing,
)
from coordinator.queue_table import (
    QueueFence,
    QueueTable,
    islands_text,
    name_list,
    needed_by,
    nodes_of,
    table_of,
)

UNCONFIRMED = "there is room; the queue looks once more before it starts"
NO_NODES_YET = "its islands wait for nodes that the cluster does not have yet"
NO_ROOM_YET = "taken by the queue: there is no room for it yet"


def decide(
    claims: Iterable[RunClaim],
    quotas: Mapping[str, Amounts],
    total: Mapping[str, Amounts],
    free: Mapping[str, Amounts],
) -> Decision:
    """Return what each queued run is answered, and what each live run must do without.

    `quotas`: limits of owners; an owner without one has no limit. `total` and `free`: resources of
    each node, and the part of them that nothing uses.
    """
    table, answers = table_of(claims, quotas, total, free), dict[str, QueueAnswer]()
    for claim in table.ranked:
        if claim.standing is Standing.QUEUED:
            answers[claim.run] = _answer(table, claim)
        else:
            _see_to(table, claim)
    return Decision(
        answers, {run: why for run, why in table.withheld.items() if run not in answers}
    )


def confirmed(before: Decision, now: Decision, claims: Iterable[RunClaim]) -> Decision:
    """Return the part of a decision that the one before it agrees with.

    The facts of one look may be of different moments: an island may be placed between two of them.
    So a run starts, and an island that holds machines is taken, only if two looks in a row have
    decided it.
    """
    answers = dict(now.answers)
    for run, answer in now.answers.items():
        earlier = before.answers.get(run)
        if answer.verdict is QueueVerdict.START and (
            earlier is None or earlier.verdict is QueueVerdict.WAIT
        ):
            answers[run] = QueueAnswer(QueueVerdict.WAIT, UNCONFIRMED)
    held = {
        (each.run, it.island)
        for each in claims
        for it in each.islands
        if it.holds and not it.withheld
    }
    withheld: dict[str, dict[Island, str]] = {}
    for run, islands in now.withheld.items():
        earlier_islands = before.withheld.get(run, {})
        withheld[run] = {
            island: why
            for island, why in islands.items()
            if (run, island) not in held or island in earlier_islands
        }
    return Decision(answers, withheld)


def _see_to(table: QueueTable, claim: RunClaim) -> None:
    """Find room for the islands of an admitted run, and note which it must do without."""
    for each in claim.own:
        if (claim.run, each.island) in table.short:
            blocked = table.find_room(claim, [each.need], charged=True)
            if blocked is not None and table.is_possible([each.need]):
                table.fences.append(QueueFence(claim, each.need.nodes))
    if claim.standing is Standing.LIVE:
        for each in claim.islands:
            stays = each.holds and not each.withheld
            if each.takeable and not stays and (why := _refusal(table, claim, each)) is not None:
                table.withheld[claim.run][each.island] = why


def _refusal(table: QueueTable, claim: RunClaim, each: ClaimedIsland) -> str | None:
    """Return why a takeable island that holds nothing, or is leaving, gets no machines now.

    None: its fleet may place it, or wait for machines that Ray does not have.
    """
    need, owner, later = each.need, claim.owner, table.later
    if each.holds:  # it is leaving, and what it holds is in `later`
        if later.lacks(owner, [need]) or (place := later.fit(need)) is None:
            return _behind(table, claim, need) or NO_ROOM_YET
        later.take(place, need)
        later.charge(owner, need)
        return None
    lacking = table.lacks(owner, [need])
    if not lacking and table.reserve_now(claim, need):
        table.charge(owner, [need])
        return None
    blocked = table.find_room(claim, [need])
    if blocked is None:
        return f"quota of {owner}: {lacking}" if lacking else None
    if blocked.by_quota:
        return blocked.why
    returns = each.withheld and table.is_possible([need])
    return _behind(table, claim, need) or (NO_ROOM_YET if returns else None)


def _behind(table: QueueTable, claim: RunClaim, need: Need) -> str | None:
    """Return the reason if another run is about to use, or waits for, the machines of a need."""
    waiting = [(fence.claim, fence.nodes) for fence in table.fences]
    for other, nodes in (*table.promised, *waiting):
        if other.run != claim.run and not nodes.isdisjoint(need.nodes):
            return needed_by(other)
    return None


def _answer(table: QueueTable, claim: RunClaim) -> QueueAnswer:
    """Return whether a queued run starts, and reserve what it starts on or waits for."""
    needs, owner = [each.need for each in claim.required], claim.owner
    if lacking := table.total.lacks(owner, needs):
        why = f"the quota of {owner} can never cover {islands_text(needs)}: {lacking}"
        return QueueAnswer(QueueVerdict.REFUSE, why)
    if not table.is_possible(needs):  # Ray's autoscaler sees only islands of runs that have started
        needs = [each.need for each in claim.firm]
    if (fence := _fence_before(table, claim, needs)) is not None:
        _leave_room(table, claim, needs, by_quota=fence.owner is not None)
        return QueueAnswer(QueueVerdict.WAIT, f"waits behind {fence.claim}")
    if table.start(claim, needs):
        why = f"there is room for {islands_text(needs)}" if needs else NO_NODES_YET
        return QueueAnswer(QueueVerdict.START, why)
    before = {run: {*islands} for run, islands in table.withheld.items()}
    if (blocked := table.find_room(claim, needs)) is None:
        new = [
            f"{island} of {run}"
            for run, islands in table.withheld.items()
            for island in islands
            if island not in before[run]
        ]
        leaving = name_list(new) if new else "islands that are leaving"
        return QueueAnswer(QueueVerdict.WAIT, f"takes {leaving}; they hand in their work first")
    if not blocked.by_quota and not table.is_possible(needs):
        return QueueAnswer(
            QueueVerdict.WAIT, f"the cluster has no machines for {islands_text(needs)} at once"
        )
    _leave_room(table, claim, needs, by_quota=blocked.by_quota)
    return QueueAnswer(QueueVerdict.WAIT, blocked.why)


def _fence_before(table: QueueTable, claim: RunClaim, needs: list[Need]) -> QueueFence | None:
    """Return the wait of an earlier run that this run must not overtake; None if there is none.

    A run of takeable islands only may overtake, because they can be taken back.
    """
    if not claim.firm:
        return None
    nodes = nodes_of(needs)
    return next(
        (each for each in table.fences if each.owner == claim.owner or each.nodes & nodes), None
    )


def _leave_room(table: QueueTable, claim: RunClaim, needs: list[Need], *, by_quota: bool) -> None:
    """Keep later runs from the machines, or from the quota, that this run waits for."""
    if by_quota or table.lacks(claim.owner, needs):
        table.fences.append(QueueFence(claim, owner=claim.owner))
        return
    table.fences.append(QueueFence(claim, nodes_of(needs)))
    table.charge(claim.owner, needs)
