"""The regions of a run's shards, and the nodes whose islands read the public corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice

from cluster.actors.start import NODE_ID
from cluster.config.schema import Config
from cluster.fleet.placement import Node, expected_islands, hosts
from cluster.launch.links import REGION


def shard_shares(config: Config, nodes: Sequence[Node]) -> dict[str, float]:
    """Return the share of the shards in each region that `sync.shard_labels` gives one.

    Without it, all shards are at the hub and the result is empty.
    """
    sync = config.sync
    if sync.shard_labels is None or sync.shards == 1:
        return {}
    region_of = {node.labels.get(NODE_ID): node.labels.get(REGION, "") for node in nodes}
    placed = islice(cycle(hosts(sync.shard_labels, nodes)), sync.shards)
    counts = Counter(region_of[node] for node in placed)
    return {region: count / sync.shards for region, count in counts.items() if region}


def readers_of_source(config: Config, nodes: Sequence[Node]) -> set[str]:
    """Return Ray's ids of the nodes with islands that read `data.source`.

    Islands of a region with a table read the corpus of their region.
    """
    reading = tuple(group for group in config.islands if config.region_of(group) is None)
    return {*expected_islands(config.model_copy(update={"islands": reading}), nodes)}
