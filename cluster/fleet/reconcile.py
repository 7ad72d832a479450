"""The fleet's rules, which compare desired and actual islands; pure, like the coordinator's.

`reconcile` is given both, and returns what to start, to drain and to give back, each with its
reason; `reconcile_loop` carries that out and looks again. An island holds devices from `PLACE` to
`GIVE_BACK`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from cluster.config.schema import FailurePolicy
from cluster.names import Seat, group_name, number_of
from cluster.status import IslandState
from coordinator.protocol import Island

GONE: frozenset[IslandState] = frozenset({"left", "lost", "quarantined"})
"""States of a learner whose life is over."""


class Hold(StrEnum):
    """The progress of an island with its devices."""

    WAITING = "waiting"  # its devices are requested
    PLACED = "placed"  # it has its devices, and no process has been started
    RUNNING = "running"  # its process is there, or Ray restarts it
    DRAINING = "draining"  # it was asked to hand in everything it has and to leave
    ASIDE = "set aside"  # it failed again and again, and holds nothing


@dataclass(frozen=True, slots=True)
class Holding:
    """The facts about one island from which the fleet decides."""

    island: Island
    hold: Hold
    since_s: float
    """The time at which it reached `hold`, in seconds of the monotonic clock."""
    learner: IslandState = "starting"
    """The state of its learner according to the syncer."""
    failures: int = 0
    """Processes that ended since its last contribution."""
    breakages: int = 0
    """Processes that ended with an exception since its last contribution."""
    silent_since_s: float | None = None
    """The time at which its learner was given up; None if it was not, or has started since."""
    incarnation: int = 0
    """The incarnation of its learner."""
    relieved: int = -1
    """The last incarnation that a spare has replaced; -1: none."""
    restarted: int = -1
    """The incarnation of its learner when its process was seen to begin again; -1: it was not."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The announcement that an island's process or machines will be taken away."""

    why: str
    """The reason, for people; it begins with "preempted"."""
    by_s: float
    """The time by which the island must have left, in seconds of the monotonic clock."""


NO_NOTICES: Mapping[Island, Notice] = MappingProxyType({})


class ActionKind(StrEnum):
    """The kind of an action on an island."""

    PLACE = "place"  # ask for its devices
    START = "start"  # start its process on them
    DRAIN = "drain"  # have it hand in everything it has and leave
    GIVE_BACK = "give back"  # end its process, return its devices
    SET_ASIDE = "set aside"  # do the same, and do not retry


@dataclass(frozen=True, slots=True)
class Action:
    """An action on one island."""

    kind: ActionKind
    island: Island
    why: str
    """The reason, for people."""
    holding: Holding | None = None
    """The holding on which this was decided; None: the island was not there."""


def reconcile(
    desired: Iterable[Island],
    actual: Mapping[Island, Holding],
    now_s: float,
    policy: FailurePolicy,
    notices: Mapping[Island, Notice] = NO_NOTICES,
) -> list[Action]:
    """Return the actions that turn the actual islands into the desired ones.

    `notices`: the islands that must leave their present devices. Those that are wanted are placed
    again afterwards, on other devices.

    Carrying them out and asking again leads to a state without further actions.
    """
    wanted = set(desired)
    new = [Action(ActionKind.PLACE, island, "wanted") for island in sorted(wanted - actual.keys())]
    known = [
        replace(action, holding=actual[island])
        for island in sorted(actual)
        if (
            action := _preempted(actual[island], policy, notices.get(island), now_s)
            or _next(actual[island], policy, wanted=island in wanted, now_s=now_s)
        )
        is not None
    ]
    return [*known, *new]  # devices are given back first: new islands may wait for them


def _preempted(
    holding: Holding, policy: FailurePolicy, notice: Notice | None, now_s: float
) -> Action | None:
    """Return the action that follows from an island's notice; None if there is no notice or action.

    An island without work to hand in returns its devices at once.
    """
    if notice is None:
        return None
    island, learner = holding.island, holding.learner
    match holding.hold:
        case Hold.PLACED:
            return Action(ActionKind.GIVE_BACK, island, notice.why)
        case Hold.RUNNING if learner in ("starting", *GONE):
            why = f"{notice.why}; its learner is {learner}"
            return Action(ActionKind.GIVE_BACK, island, why)
        case Hold.RUNNING:
            return Action(ActionKind.DRAIN, island, notice.why)
        case Hold.DRAINING if learner not in GONE and now_s > notice.by_s:
            after_s = min(now_s - holding.since_s, policy.drain_s)
            why = f"{notice.why}; not drained in {after_s:.0f} s, its time is over"
            return Action(ActionKind.GIVE_BACK, island, why)
        case _:
            return None


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
    """Return which warm spare takes which island over.

    A spare of its group replaces an island that is lost or whose process restarts: once for each
    loss, and only if another start might help.
    """
    left = {group: [*seats] for group, seats in warm.items()}
    pairs: list[tuple[Island, Seat]] = []
    for island, holding in sorted(actual.items()):
        restarting = holding.restarted >= holding.incarnation  # a spare is faster than a restart
        lost = holding.hold is Hold.RUNNING and (holding.learner == "lost" or restarting)
        can_help = holding.incarnation > holding.relieved and failing(policy, holding) is None
        if lost and can_help and island in desired and (seats := left.get(group_name(island))):
            pairs.append((island, seats.pop(0)))
    return pairs


def failing(policy: FailurePolicy, holding: Holding) -> str | None:
    """Return why another start would not help; None if it might."""
    if holding.breakages >= policy.exceptions:
        return f"broke {holding.breakages} times without a contribution between"
    if holding.failures >= policy.deaths:
        return f"{holding.failures} processes ended without a contribution between"
    return None


def hanging(policy: FailurePolicy, holding: Holding, now_s: float) -> str | None:
    """Return why the island should have a new process in another place; None if it should not."""
    since_s = holding.silent_since_s
    if policy.hang == "wait" or since_s is None or now_s - since_s <= policy.hang_s:
        return None
    return f"silent for {now_s - since_s:.0f} s and not dead: replaced"


def delay_s(policy: FailurePolicy, failures: int) -> float:
    """Return the start-up back-off: how many seconds a process waits before it starts.

    `failures`: processes of its island that have ended in a row. The first restart is immediate, so
    that an accident costs nothing; a crash loop does not keep its machine busy.
    """
    if failures < 2:
        return 0.0
    return min(policy.longest_delay_s, policy.first_delay_s * 2.0 ** min(failures - 2, 60))


def resized(islands: Iterable[Island], group: str, count: int) -> frozenset[Island]:
    """Return these islands with `count` of the group.

    New islands take the lowest free numbers; those with the highest numbers go first.
    """
    islands = frozenset(islands)
    members = sorted((i for i in islands if group_name(i) == group), key=number_of)
    if count < len(members):
        return islands - {*members[count:]}
    taken = {number_of(island) for island in members}
    free_numbers = (n for n in range(count) if n not in taken)
    added = [
        Island(f"{group}-{n}")
        for _, n in zip(range(count - len(members)), free_numbers, strict=False)
    ]
    return islands | {*added}
