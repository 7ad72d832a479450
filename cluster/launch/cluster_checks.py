"""Checks of a configuration against the nodes of a cluster: their regions and addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cluster.config.schema import Config
from cluster.config.values import nearest
from cluster.fleet.placement import Node
from cluster.launch.links import REGION


def region_problems(config: Config, nodes: Sequence[Node], own_address: str) -> list[str]:
    """Return the regions that no node has, and addresses that two regions share.

    Where no node has the label, regions are those of the data only. Several nodes may run on this
    process's machine.
    """
    return [*_unknown(config, nodes), *_shared(nodes, own_address)]


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
