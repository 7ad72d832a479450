"""The findings about a cluster: nodes, versions, clocks, disks and leftover actors; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.launch.link_findings import Finding, Severity

SKEW_S = 1.0
"""The largest difference of two clocks that is not notable, in seconds."""
SPAN_S = 600.0
"""Seconds for which the end of a node is a problem, by default."""
FREE_SHARE = 0.05
"""The share of a disk, or of the memory for objects, below which it is nearly full."""


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The state of one node, as a process on it sees it."""

    name: str
    """The address of the node."""
    error: str = ""
    """The reason why no process of ours runs there; empty if one does."""
    skew_s: float = 0.0
    """The least difference of its clock to this machine's, in seconds."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Versions of Python and the packages, and the digest of our source, by name."""
    free: Mapping[str, float] = field(default_factory=dict[str, float])
    """The free share of each disk, by what it is for."""


@dataclass(frozen=True, slots=True)
class DeadNode:
    """A node that ended unexpectedly and has not rejoined."""

    why: str
    """Ray's reason; empty if it names none."""
    age_s: float | None = None
    """Seconds since the end; None if Ray names no time."""


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """The state of a cluster."""

    nodes: Sequence[NodeHealth]
    dead_nodes: Mapping[str, DeadNode] = field(default_factory=dict[str, DeadNode])
    """Nodes that ended unexpectedly, by address."""
    span_s: float = SPAN_S
    """Seconds for which the end of a node is a problem; later it is a note."""
    draining: Sequence[str] = ()
    """Addresses of the nodes that Ray drains."""
    leftover: Mapping[str, int] = field(default_factory=dict[str, int])
    """Actors of runs without a fleet, by run."""


def findings_about_cluster(health: ClusterHealth) -> list[Finding]:
    """Return everything that is wrong with a cluster, the worst first."""
    found = [each for rule in RULES for each in rule(health)]
    order = [*Severity]
    return sorted(found, key=lambda each: order.index(each.severity))


def _nodes(health: ClusterHealth) -> Iterator[Finding]:
    for node in health.nodes:
        if node.error:
            hint = "install the same Archipelago there, and open Ray's ports (docs/howto/wan.md)"
            what = f"no process of ours runs there: {node.error}"
            yield Finding(f"node {node.name}", what, Severity.PROBLEM, hint)
        if abs(node.skew_s) > SKEW_S:
            ahead = "ahead of" if node.skew_s > 0 else "behind"
            what = f"its clock is at least {abs(node.skew_s):.1f} s {ahead} this machine's"
            hint = "synchronize its clock (chrony or ntpd)"
            yield Finding(f"node {node.name}", what, Severity.WARNING, hint)
        for purpose, share in node.free.items():
            if share < FREE_SHARE:
                what = f"{share:.0%} of {purpose} is free"
                yield Finding(f"node {node.name}", what, Severity.WARNING, "free space there")
    for name, dead in health.dead_nodes.items():
        yield _dead_node(name, dead, health.span_s)
    for name in health.draining:
        what = "Ray drains the node, and places nothing on it"
        hint = "nothing, if its machine is taken away; else start Ray there again"
        yield Finding(f"node {name}", what, Severity.NOTE, hint)


def _dead_node(name: str, dead: DeadNode, span_s: float) -> Finding:
    """Return the finding about a node that ended; Ray names it long after a new one replaced it."""
    when = "" if dead.age_s is None else f" {_age_text(dead.age_s)} ago"
    what = f"the node ended unexpectedly{when}: {dead.why or 'Ray names no reason'}"
    if dead.age_s is None or dead.age_s <= span_s:
        hint = "look at the machine; with `ray start` it joins again"
        return Finding(f"node {name}", what, Severity.PROBLEM, hint)
    hint = "nothing, if another node has replaced it; else `ray start` there joins again"
    return Finding(f"node {name}", what, Severity.NOTE, hint)


def _age_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _versions(health: ClusterHealth) -> Iterator[Finding]:
    """Find versions that are not the same on all nodes; the most frequent one counts as right."""
    nodes = [node for node in health.nodes if not node.error]
    for name in sorted({name for node in nodes for name in node.versions}):
        by_node = {node.name: node.versions.get(name, "none") for node in nodes}
        counts = Counter(by_node.values())
        if len(counts) == 1:
            continue
        usual = counts.most_common(1)[0][0]
        for where, version in by_node.items():
            if version != usual:
                what = f"{name} is {version}, and {usual} on most nodes"
                hint = "install the same versions on every node (docs/howto/environments.md)"
                yield Finding(f"node {where}", what, Severity.PROBLEM, hint)


def _leftover(health: ClusterHealth) -> Iterator[Finding]:
    for run, count in health.leftover.items():
        what = f"{count} actors are left of a run without a fleet; they may hold devices"
        hint = f"resume the run {run}, or end them with `ray kill-actor`"
        yield Finding(f"run {run}", what, Severity.WARNING, hint)


RULES: tuple[Callable[[ClusterHealth], Iterator[Finding]], ...] = (_nodes, _versions, _leftover)
