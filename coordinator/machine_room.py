"""Free machines and unused quotas of a cluster, as one ledger for a decision of its queue.

A need is met if there are nodes with room for all hosts of an island, and if its owner's quota
still covers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

ISLANDS = "islands"
"""The key of a quota that counts islands; all other keys are Ray resources."""
LEAST = 1e-6
"""The smallest amount of a resource that counts; Ray counts in steps of 1e-4."""
Amounts = Mapping[str, float]
"""Amounts of resources by name."""
IslandNodes = tuple[str, ...]
"""Nodes of an island, one for each host; empty: it holds none."""


@dataclass(frozen=True, slots=True)
class Need:
    """The machines of one island."""

    each: Amounts
    """Resources of one host."""
    hosts: int = 1
    """Hosts of the island."""
    nodes: frozenset[str] = frozenset()
    """Nodes that have the labels which the island needs."""
    apart: bool = False
    """Whether each host is on a node of its own."""

    @property
    def counted(self) -> dict[str, float]:
        """The amounts that count for a quota."""
        return {ISLANDS: 1.0, **{name: self.hosts * each for name, each in self.each.items()}}

    def __str__(self) -> str:
        each = " + ".join(f"{amount:g} {name}" for name, amount in sorted(self.each.items()))
        return each if self.hosts == 1 else f"{self.hosts} hosts of {each}"


@dataclass(slots=True)
class MachineRoom:
    """A ledger of free amounts on each node, and of the unused quota of each owner.

    An owner without an entry, or a quota without a resource, has no limit.
    """

    nodes: dict[str, dict[str, float]]
    """Free amounts on each node."""
    quotas: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Unused amounts of each owner's quota; negative if more is used."""

    @classmethod
    def of(cls, nodes: Mapping[str, Amounts], quotas: Mapping[str, Amounts]) -> MachineRoom:
        """Return a ledger with these amounts."""
        return cls(
            {node: {**free} for node, free in nodes.items()},
            {owner: {**left} for owner, left in quotas.items()},
        )

    def copy(self) -> MachineRoom:
        """Return a copy, to try something out."""
        return MachineRoom.of(self.nodes, self.quotas)

    def fit(self, need: Need, other: MachineRoom | None = None) -> IslandNodes | None:
        """Return nodes with room for an island; None if there are not enough.

        The node with least room that holds all hosts is chosen, so that large gaps stay whole.
        Otherwise the hosts are spread, the nodes with most room first. `other`: another ledger that
        must have the room, too.
        """
        holds: dict[str, int] = {}
        for node in need.nodes & self.nodes.keys():
            times = self._times(node, need)
            if times and other is not None:
                times = min(times, other._times(node, need))
            if times:
                holds[node] = times
        if need.apart:
            holds = dict.fromkeys(holds, 1)
        order = sorted(holds, key=lambda node: (self._free(node, need), node))
        for node in order:
            if holds[node] >= need.hosts:
                return (node,) * need.hosts
        hosts = [node for node in reversed(order) for _ in range(holds[node])]
        return tuple(hosts[: need.hosts]) if len(hosts) >= need.hosts else None

    def _free(self, node: str, need: Need) -> float:
        return sum(self.nodes[node].get(name, 0.0) for name in need.each)

    def _times(self, node: str, need: Need) -> int:
        """Return how many hosts of an island a node has room for, at most all of them."""
        free = self.nodes[node]
        times = need.hosts
        for name, each in need.each.items():
            if each > 0:
                times = min(times, int((free.get(name, 0.0) + LEAST) / each))
        return max(0, times)

    def lacks(self, owner: str, needs: Iterable[Need]) -> str | None:
        """Return which part of an owner's quota does not cover these needs; None if it does."""
        left, sums = self.quotas.get(owner, {}), dict[str, float]()
        for need in needs:
            for name, amount in need.counted.items():
                sums[name] = sums.get(name, 0.0) + amount
        short = [name for name in sorted(sums) if sums[name] > left.get(name, sums[name]) + LEAST]
        if not short:
            return None
        return ", ".join(f"{max(0.0, left[n]):g} of {n} left, {sums[n]:g} needed" for n in short)

    def take(self, place: IslandNodes, need: Need) -> None:
        """Subtract an island's machines."""
        self._add(place, need, -1.0)

    def give(self, place: IslandNodes, need: Need) -> None:
        """Add an island's machines."""
        self._add(place, need, 1.0)

    def charge(self, owner: str, need: Need, sign: float = -1.0) -> None:
        """Subtract an island from its owner's quota; `sign` = 1 adds it."""
        left = self.quotas.get(owner)
        if left is not None:
            for name, amount in need.counted.items():
                if name in left:
                    left[name] += sign * amount

    def _add(self, place: IslandNodes, need: Need, sign: float) -> None:
        for node in place:
            if (free := self.nodes.get(node)) is not None:
                for name, each in need.each.items():
                    free[name] = free.get(name, 0.0) + sign * each
