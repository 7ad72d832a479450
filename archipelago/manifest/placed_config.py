"""The configuration of a run for the cluster that a manifest describes.

Each group of islands gets a label that only its own node group has, so that no island takes the
place of another group. Each host of an island gets whole amounts of its resources. Paths lie on the
shared volume, and the metrics port is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cluster.config.load import parse
from cluster.config.schema import Config
from islands.data.buckets import in_bucket

GROUP = "archipelago-group"
"""The label of a node with the name of its group."""
CONTROL = "archipelago-control"
"""The group of fleet, syncer, shards and evaluator."""
EVALUATOR = "archipelago-evaluator"
"""The group of an evaluator that has machines of its own."""
SHARDS = "archipelago-shards"
"""The group of shards that are not at the fleet (`sync.shard_labels`)."""
VOLUME = "/archipelago"
"""The place of the shared volume in every pod."""
RUNS, DURABLE = f"{VOLUME}/runs", f"{VOLUME}/durable"
"""The folders of run directories and of durable stores on it."""
METRICS_PORT = 9464
"""The port of the run's metrics: the one that OpenTelemetry's Prometheus exporters use."""
ANY_ADDRESS = "0.0.0.0"


def placed(config: Config, name: str, *, volume: bool = True, control: bool = True) -> Config:
    """Return the configuration for a cluster of this name.

    `volume`: there is a shared volume; otherwise paths stay as they are. `control`: there is a node
    for the fleet and an evaluator beside it; otherwise an evaluator with devices gets a node.
    """
    tables: dict[str, Any] = config.model_dump(mode="json", exclude_none=True)
    tables["run"]["name"] = name
    tables["monitor"] |= {"metrics_host": ANY_ADDRESS, "metrics_port": METRICS_PORT}
    for group in tables["islands"]:
        group["label_selector"] = _with_group(group, group["group"])
        group["resources"] = whole(group["resources"])
    needs_node = not control and any(config.monitor.evaluator.devices.values())
    if config.monitor.evaluator.apart or needs_node:
        evaluator = tables["monitor"]["evaluator"]
        evaluator["label_selector"] = _with_group(evaluator, EVALUATOR)
        evaluator["resources"] = whole(evaluator["resources"])
    if volume:
        tables["run"]["dir"] = RUNS
        if (given := config.durability.dir) is None or given.startswith("/"):
            tables["durability"]["dir"] = DURABLE
    return parse(tables, origin="the configuration for this cluster")


def whole(resources: Mapping[str, float]) -> dict[str, float]:
    """Return resources rounded up to whole amounts, since Ray's nodes offer no others.

    Each host has a node of its own, so that no other host could use the rest.
    """
    return {name: float(math.ceil(amount)) for name, amount in resources.items()}


def _with_group(machines: Mapping[str, Any], group: str) -> dict[str, str]:
    return {**machines.get("label_selector", {}), GROUP: group}


def buckets(config: Config) -> list[str]:
    """Return the URIs of all buckets that the configuration names: durable stores and corpora."""
    places = [config.durability.dir, config.data.source]
    places += [each.source for each in config.data.mixture]
    for region in config.regions.values():
        places += [region.data, region.durability.dir]
    return [each for each in places if each is not None and in_bucket(each)]
