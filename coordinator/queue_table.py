"""One decision of a cluster's queue in the making: room and quota, promised in order of rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.machine_room import Amounts, MachineRoom, Need
from coordinator.protocol import Island
from coordinator.queue_claims import ClaimedIsland, RunClaim, Standing

SHOWN = 4
"""Names that a reason has; it counts the others."""
TakenIsland = tuple[RunClaim, ClaimedIsland]
"""An island that is taken, and its run."""
Promise = tuple[RunClaim, frozenset[str]]
"""A run, and the nodes on which it was given room."""


@dataclass(frozen=True, slots=True)
class QueueFence:
    """Machines or a quota that a run waits for, and that later runs must leave to it."""

    claim: RunClaim
    nodes: frozenset[str] = frozenset()
    owner: str | None = None
    """The owner of the quota; None: it waits for machines."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The reason why needs cannot be met, even if islands are taken."""

    why: str
    by_quota: bool


@dataclass(slots=True)
class QueueTable:
    """The machines and quotas of a decision; runs are seen in order of their rank."""

    ranked: Sequence[RunClaim]
    total: MachineRoom
    """The machines of the empty cluster, and whole quotas."""
    now: MachineRoom
    """Machines that are free, and quota that is unused, now."""
    later: MachineRoom = field(init=False)
    """Machines and quota once the islands that are leaving have left."""
    withheld: dict[str, dict[Island, str]] = field(init=False)
    """The islands that each run must do without, with the reasons."""
    fences: list[QueueFence] = field(default_factory=list[QueueFence])
    promised: list[Promise] = field(default_factory=list[Promise])
    """Nodes on which islands that hold nothing yet were given room."""
    short: set[tuple[str, Island]] = field(default_factory=set[tuple[str, Island]])
    """Islands that are their run's own, and for which there is no free room."""

    def __post_init__(self) -> None:
        self.later = self.now.copy()
        self.withheld = {claim.run: {} for claim in self.ranked}

    def count_holdings(self) -> None:
        """Charge all islands to their owners, and reserve room for those of a run's own."""
        for claim in self.ranked:
            for each in claim.islands:
                if each.holds:
                    self.charge(claim.owner, [each.need])
                    if each.withheld:  # it is leaving
                        _free(self.later, claim, each)
        for claim in self.ranked:
            if claim.standing is Standing.QUEUED:
                continue
            for each in claim.own:
                if not each.holds:
                    self.charge(claim.owner, [each.need])
                    if not self.reserve_now(claim, each.need):
                        self.short.add((claim.run, each.island))

    def charge(self, owner: str, needs: Iterable[Need]) -> None:
        """Charge these needs to their owner, now and later."""
        for need in needs:
            self.now.charge(owner, need)
            self.later.charge(owner, need)

    def lacks(self, owner: str, needs: Sequence[Need]) -> str | None:
        """Return which part of the quota does not cover these needs now; None if it does."""
        return self.now.lacks(owner, needs) or self.later.lacks(owner, needs)

    def reserve_now(self, claim: RunClaim, need: Need) -> bool:
        """Reserve free machines that no earlier run is promised; return whether there are any."""
        if (place := self.now.fit(need, self.later)) is None:
            return False
        self.now.take(place, need)
        self.later.take(place, need)
        self.promised.append((claim, frozenset(place)))
        return True

    def start(self, claim: RunClaim, needs: Sequence[Need]) -> bool:
        """Reserve free machines and quota for all needs, or for none."""
        if self.lacks(claim.owner, needs):
            return False
        kept = self.now.copy(), self.later.copy(), [*self.promised]
        if all(self.reserve_now(claim, need) for need in needs):
            self.charge(claim.owner, needs)
            return True
        self.now, self.later, self.promised = kept
        return False

    def is_possible(self, needs: Sequence[Need]) -> bool:
        """Return whether the empty cluster has machines for all of these needs."""
        return placed(self.total, None, needs) is not None

    def find_room(
        self, claim: RunClaim, needs: Sequence[Need], *, charged: bool = False
    ) -> Blocked | None:
        """Reserve machines that leaving islands give back, and take as few more as are needed.

        `charged`: the needs are charged to their owner already. Return the reason if that is not
        possible; then nothing is reserved or taken.
        """
        owner = None if charged else claim.owner
        taken: list[TakenIsland] = []
        trial = self.later.copy()
        for need in needs:
            lacking = None if owner is None else trial.lacks(owner, [need])
            place = trial.fit(need)
            while lacking or place is None:
                victim = next(self._victims(claim, need, taken, owner if lacking else None), None)
                if victim is None:
                    if owner is not None and lacking:
                        whole = self.later.lacks(owner, needs) or lacking
                        return Blocked(f"quota of {owner}: {whole}", by_quota=True)
                    return Blocked(self._no_room(needs), by_quota=False)
                _free(trial, *victim)
                taken.append(victim)
                lacking = None if owner is None else trial.lacks(owner, [need])
                place = trial.fit(need)
            trial.take(place, need)
            if owner is not None:
                trial.charge(owner, need)
        for victim in reversed(taken.copy()):  # some were perhaps not needed after all
            rest, fewer = self.later.copy(), [each for each in taken if each is not victim]
            for each in fewer:
                _free(rest, *each)
            if (smaller := placed(rest, owner, needs)) is not None:
                trial, taken = smaller, fewer
        self.later = trial
        self.promised.append((claim, nodes_of(needs)))
        for other, each in taken:
            self.withheld[other.run][each.island] = needed_by(claim)
        return None

    def _victims(
        self, claim: RunClaim, need: Need, taken: Sequence[TakenIsland], owner: str | None
    ) -> Iterator[TakenIsland]:
        """Yield islands that may be taken, the least important first.

        `owner`: the owner whose quota is exceeded; None: machines are missing.
        """
        for other in reversed(self.ranked):
            if other.priority >= claim.priority:
                return
            for each in reversed(other.islands):
                stays = not each.withheld and each.island not in self.withheld[other.run]
                helps = other.owner == owner if owner else not need.nodes.isdisjoint(each.holds)
                if each.takeable and each.holds and stays and helps and (other, each) not in taken:
                    yield other, each

    def _no_room(self, needs: Sequence[Need]) -> str:
        nodes = nodes_of(needs)
        holders = [
            claim.run
            for claim in self.ranked
            if any(not nodes.isdisjoint(each.holds) for each in claim.islands)
        ]
        held = f"; such machines are held by {name_list(holders)}" if holders else ""
        return f"no room for {islands_text(needs)}{held}"


def needed_by(claim: RunClaim) -> str:
    """Return the reason of an island that is taken for this run."""
    return f"taken by the queue: {claim} needs the machines"


def nodes_of(needs: Iterable[Need]) -> frozenset[str]:
    """Return all nodes that are suitable for one of these needs."""
    return frozenset[str]().union(*(need.nodes for need in needs))


def islands_text(needs: Sequence[Need]) -> str:
    """Describe needs: `2 islands of 1 GPU`."""
    kinds = dict.fromkeys(map(str, needs))
    return f"{len(needs)} island{'s' if len(needs) > 1 else ''} of {' or '.join(kinds)}"


def name_list(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _free(room: MachineRoom, claim: RunClaim, island: ClaimedIsland) -> None:
    room.give(island.holds, island.need)
    room.charge(claim.owner, island.need, 1.0)


def placed(room: MachineRoom, owner: str | None, needs: Sequence[Need]) -> MachineRoom | None:
    """Return the ledger after all needs are met; None if it does not meet them together.

    `owner`: whose quota they are charged to; None: no quota.
    """
    if owner is not None and room.lacks(owner, needs):
        return None
    trial = room.copy()
    for need in needs:
        if (place := trial.fit(need)) is None:
            return None
        trial.take(place, need)
        if owner is not None:
            trial.charge(owner, need)
    return trial


def table_of(
    claims: Iterable[RunClaim],
    quotas: Mapping[str, Amounts],
    total: Mapping[str, Amounts],
    free: Mapping[str, Amounts],
) -> QueueTable:
    """Return the table of a decision, with all holdings counted; see `cluster_queue.decide`."""
    ranked = sorted(claims, key=lambda claim: claim.rank)
    table = QueueTable(ranked, MachineRoom.of(total, quotas), MachineRoom.of(free, quotas))
    table.count_holdings()
    return table
