"""The fleet's rules: which islands shall be there against which are; pure, like the coordinator's.

`reconcile` is given both and says what to start, to drain and to give back, each with its reason;
`controller` does it and looks again. An island holds devices from `PLACE` to `GIVE_BACK`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cluster.config.schema import FailurePolicy
from cluster.names import Seat, group_name, number_of
from cluster.status import IslandState
from coordinator.protocol import Island

GONE: frozenset[IslandState] = frozenset({"left", "lost", "quarantined"})


class Hold(StrEnum):
    """How far an island has got with its devices."""

    WAITING = "waiting"  # they are asked for
    PLACED = "placed"  # they are its own, no process has been started
    RUNNING = "running"  # its process is there, or Ray restarts it
    DRAINING = "draining"  # it was asked to hand in what it has and to leave
    ASIDE = "set aside"  # it failed again and again; it holds nothing


@dataclass(frozen=True, slots=True)
class Holding:
    """What the fleet knows of one island.

    `since_s`: when it got to `hold`. `learner`: what the syncer says of its learner. `failures`:
    processes that ended since its last contribution; `breakages`: those with an exception.
    `silent_since_s`: when its learner was given up, and no process has started since.
    `incarnation`: of its learner; `relieved`: of the last one whose place a spare has taken.
    """

    island: Island
    hold: Hold
    since_s: float
    learner: IslandState = "starting"
    failures: int = 0
    breakages: int = 0
    silent_since_s: float | None = None
    incarnation: int = 0
    relieved: int = -1
    restarted: int = -1
    """Incarnation of its learner when its process was seen to begin again; -1: it was not."""


class ActionKind(StrEnum):
    """The kind of an action on an island."""

    PLACE = "place"  # ask for its devices
    START = "start"  # start its process on them
    DRAIN = "drain"  # have it hand in what it has and leave
    GIVE_BACK = "give back"  # end its process, return its devices
    SET_ASIDE = "set aside"  # ... and try no more


@dataclass(frozen=True, slots=True)
class Action:
    kind: ActionKind
    island: Island
    why: str
    holding: Holding | None = None
    """The holding that this was decided on; None: the island was not there."""


def reconcile(
    desired: Iterable[Island],
    actual: Mapping[Island, Holding],
    now_s: float,
    policy: FailurePolicy,
) -> list[Action]:
    """What to do now so that the islands that are there become those that shall be.

    Doing it and asking again leads to a state that asks for nothing.
    """
    wanted = set(desired)
    new = [Action(ActionKind.PLACE, island, "wanted") for island in sorted(wanted - actual.keys())]
    known = [
        replace(action, holding=actual[island])
        for island in sorted(actual)
        if (action := _next(actual[island], policy, wanted=island in wanted, now_s=now_s))
        is not None
    ]
    return [*known, *new]  # what is given back first may be what the new ones wait for


def _next(holding: Holding, policy: FailurePolicy, *, wanted: bool, now_s: float) -> Action | None:
    island = holding.island
    match holding.hold:
        case Hold.WAITING if not wanted:
            return Action(ActionKind.GIVE_BACK, island, "no longer wanted")
        case Hold.PLACED:
            if wanted:
                return Action(ActionKind.START, island, "its devices are there")
            return Action(ActionKind.GIVE_BACK, island, "no longer wanted")
        case Hold.RUNNING if not wanted:
            if holding.learner in ("starting", *GONE):
                why = f"no longer wanted, its learner is {holding.learner}"
                return Action(ActionKind.GIVE_BACK, island, why)
            return Action(ActionKind.DRAIN, island, "no longer wanted")
        case Hold.RUNNING if (why := failing(policy, holding)) is not None:
            return Action(ActionKind.SET_ASIDE, island, why)
        case Hold.RUNNING if (why := hanging(policy, holding, now_s)) is not None:
            return Action(ActionKind.GIVE_BACK, island, why)
        case Hold.DRAINING:
            if holding.learner in GONE:
                return Action(ActionKind.GIVE_BACK, island, f"its learner is {holding.learner}")
            if now_s - holding.since_s > policy.drain_s:
                return Action(
                    ActionKind.GIVE_BACK, island, f"not drained in {policy.drain_s:.0f} s"
                )
            return None
        case Hold.ASIDE if not wanted:
            return Action(ActionKind.GIVE_BACK, island, "no longer wanted")
        case _:
            return None


def relief(
    desired: Container[Island],
    actual: Mapping[Island, Holding],
    warm: Mapping[str, Sequence[Seat]],
    policy: FailurePolicy,
) -> list[tuple[Island, Seat]]:
    """Return which warm spare takes which island over: one of its group that is lost, or whose
    process begins again, once for each loss, as long as another start might help."""
    left = {group: [*seats] for group, seats in warm.items()}
    pairs: list[tuple[Island, Seat]] = []
    for island, holding in sorted(actual.items()):
        again = holding.restarted >= holding.incarnation  # a spare is quicker than it
        lost = holding.hold is Hold.RUNNING and (holding.learner == "lost" or again)
        helps = holding.incarnation > holding.relieved and failing(policy, holding) is None
        if lost and helps and island in desired and (seats := left.get(group_name(island))):
            pairs.append((island, seats.pop(0)))
    return pairs


def failing(policy: FailurePolicy, holding: Holding) -> str | None:
    """Why another start would not help; None while there is hope."""
    if holding.breakages >= policy.exceptions:
        return f"broke {holding.breakages} times without a contribution between"
    if holding.failures >= policy.deaths:
        return f"{holding.failures} processes ended without a contribution between"
    return None


def hanging(policy: FailurePolicy, holding: Holding, now_s: float) -> str | None:
    """Why it should have a new process in another place; None if it need not."""
    since_s = holding.silent_since_s
    if policy.hang == "wait" or since_s is None or now_s - since_s <= policy.hang_s:
        return None
    return f"silent for {now_s - since_s:.0f} s and not dead: replaced"


def delay_s(policy: FailurePolicy, failures: int) -> float:
    """Start-up back-off: how long a process waits before it starts, the `failures`-th in a row of
    its island having ended. The first restart is at once, so that an accident costs nothing; a
    crash loop does not keep its machine busy."""
    if failures < 2:
        return 0.0
    return min(policy.longest_delay_s, policy.first_delay_s * 2.0 ** min(failures - 2, 60))


def resized(islands: Iterable[Island], group: str, count: int) -> frozenset[Island]:
    """These islands with so many of the group: new ones take the lowest free numbers, and those
    with the highest go first."""
    islands = frozenset(islands)
    mine = sorted((i for i in islands if group_name(i) == group), key=number_of)
    if count < len(mine):
        return islands - {*mine[count:]}
    taken = {number_of(island) for island in mine}
    free = (n for n in range(count) if n not in taken)
    more = [Island(f"{group}-{n}") for _, n in zip(range(count - len(mine)), free, strict=False)]
    return islands | {*more}
