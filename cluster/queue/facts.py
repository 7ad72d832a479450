"""The facts of one look of the queue, and the claims of the rule that follow from them; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.actors.start import NODE_ID
from cluster.fleet.placement import Node, matches
from cluster.fleet.queue_message import OPTIONAL, IslandMessage, MachinesMessage, RunMessage
from cluster.names import namespace_of
from cluster.queue.quotas import Quotas
from coordinator.machine_room import LEAST, Amounts, IslandNodes, Need
from coordinator.protocol import Island
from coordinator.queue_claims import ClaimedIsland, RunClaim, Standing

SOMEWHERE = "?"
"""The node of a host if Ray's table does not name it."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts about the cluster that one look of the queue finds."""

    quotas: Quotas
    nodes: Sequence[Node]
    """The living nodes, but for those that Ray drains."""
    free: Mapping[str, Amounts]
    """Unused resources of each node, by Ray's id of it."""
    placed: Mapping[str, IslandNodes]
    """The nodes of each placement group that is placed, by its name, one for each bundle."""
    fleets: Mapping[str, RunMessage | None]
    """Each run that has a fleet, by name; None: the fleet does not answer."""


@dataclass(frozen=True, slots=True)
class Applicant:
    """A job that asks whether its run may start, or that is about to start it."""

    message: RunMessage
    admitted: bool
    """Whether it may start."""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The facts of one look in the form of the rule."""

    claims: Sequence[RunClaim]
    quotas: Mapping[str, Amounts]
    total: Mapping[str, Amounts]
    free: Mapping[str, Amounts]
    messages: Mapping[str, RunMessage] = field(default_factory=dict[str, RunMessage])
    """The message of each run from which its claim was made."""


def queue_facts(cluster: ClusterFacts, applicants: Mapping[str, Applicant]) -> QueueFacts:
    """Return the claims of all runs, with the quotas and the machines.

    A run with a fleet is live, whatever its job asks. A fleet that does not answer counts as
    starting if its job is known, and is left out otherwise.
    """
    messages: dict[str, RunMessage] = {}
    standings: dict[str, Standing] = {}
    for run, applicant in applicants.items():
        messages[run] = applicant.message
        standings[run] = Standing.STARTING if applicant.admitted else Standing.QUEUED
    for run, message in cluster.fleets.items():
        if message is not None:
            messages[run], standings[run] = message, Standing.LIVE
        elif run in messages:
            standings[run] = Standing.STARTING
    nodes = {node.labels[NODE_ID]: node for node in cluster.nodes if NODE_ID in node.labels}
    claims = [
        claim_of(message, standings[run], nodes, cluster.placed)
        for run, message in messages.items()
    ]
    return QueueFacts(
        claims,
        {claim.owner: cluster.quotas.of(claim.owner) for claim in claims},
        {name: node.total for name, node in nodes.items()},
        {name: cluster.free.get(name, {}) for name in nodes},
        messages,
    )


def claim_of(
    message: RunMessage,
    standing: Standing,
    nodes: Mapping[str, Node],
    placed: Mapping[str, IslandNodes],
) -> RunClaim:
    """Return the claim of a run; `nodes` and `placed` as in `ClusterFacts`, by Ray's ids."""
    needs = {name: need_of(each, nodes) for name, each in message["groups"].items()}
    space = namespace_of(message["run"])
    return RunClaim(
        run=message["run"],
        owner=message["owner"],
        priority=message["priority"],
        since_s=message["since_s"],
        standing=standing,
        islands=tuple(
            ClaimedIsland(
                Island(each["island"]),
                needs[each["group"]],
                each["takeable"],
                _place(each, space, needs[each["group"]].hosts, placed),
                each["withheld"] not in (None, OPTIONAL),
            )
            for each in message["islands"]
        ),
        least=message["least"],
    )


def need_of(machines: MachinesMessage, nodes: Mapping[str, Node]) -> Need:
    """Return the need of an island, with the nodes that could ever hold one of its hosts."""
    each = machines["each"]
    suitable = frozenset(
        name
        for name, node in nodes.items()
        if all(matches(value, node.labels.get(key)) for key, value in machines["labels"].items())
        and all(node.total.get(key, 0.0) + LEAST >= amount for key, amount in each.items())
    )
    return Need(each, machines["hosts"], suitable, machines["apart"])


def _place(
    each: IslandMessage, space: str, hosts: int, placed: Mapping[str, IslandNodes]
) -> IslandNodes:
    """Return the nodes that an island holds, by Ray's table of placement groups."""
    if each["seat"] is None:
        return ()
    return placed.get(f"{space}/{each['seat']}") or ((SOMEWHERE,) * hosts if each["held"] else ())
