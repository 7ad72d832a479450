"""Checks of a configuration against the nodes of a cluster: their regions and addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cluster.config.schema import Config
from cluster.config.values import nearest
from cluster.fleet.placement import Node, may_host
from cluster.launch.links import REGION

NAMED = 3
"""Nodes that a message names."""


def region_problems(config: Config, nodes: Sequence[Node], own_address: str) -> list[str]:
    """Return regions that no node has, groups outside of theirs, and addresses of two regions.

    Where no node has the label, regions are those of the data only. Several nodes may run on this
    process's machine.
    """
    return [*_unknown(config, nodes), *_unbound(config, nodes), *_shared(nodes, own_address)]


def _unknown(config: Config, nodes: Sequence[Node]) -> Iterator[str]:
    known = sorted({node.labels[REGION] for node in nodes if REGION in node.labels})
    for number, group in enumerate(config.islands):
        wanted = group.region
        if known and wanted is not None and wanted not in known and not group.opportunistic:
            yield (
                f"islands.{number}.region: none of the {len(nodes)} nodes has the label "
                f"{REGION}={wanted}; {nearest(wanted, known)} or start its "
                f"nodes with `ray start --labels={REGION}={wanted}`"
            )


def _unbound(config: Config, nodes: Sequence[Node]) -> Iterator[str]:
    """Yield the groups with a region that may run on nodes outside of it.

    The measures of a region's link, its leases and its corpus would be those of another region.
    """
    known = {node.labels[REGION] for node in nodes if REGION in node.labels}
    for number, group in enumerate(config.islands):
        wanted = group.region
        if wanted not in known:
            continue
        outside = [
            f"{node.name} ({REGION}={node.labels.get(REGION, '')})"
            for node in nodes
            if node.labels.get(REGION) != wanted and may_host(group, node)
        ]
        if outside:
            more = f" and {len(outside) - NAMED} more" if len(outside) > NAMED else ""
            yield (
                f'islands.{number}.region: "{wanted}", but the islands may run on nodes of other '
                f"regions or of none: {', '.join(outside[:NAMED])}{more}; bind them with "
                f'label_selector = {{{REGION} = "{wanted}"}}, or leave region out'
            )


def _shared(nodes: Sequence[Node], own_address: str) -> Iterator[str]:
    regions: dict[str, set[str]] = {}
    for node in nodes:
        if REGION in node.labels and node.name != own_address:
            regions.setdefault(node.name, set()).add(node.labels[REGION])
    for address, names in sorted(regions.items()):
        if len(names) > 1:
            yield (
                f"the regions {' and '.join(sorted(names))} have one address, {address}: Ray needs "
                "one for each node, without address translation (docs/howto/wan.md, step 1); give "
                "each node its own with `ray start --node-ip-address`"
            )
