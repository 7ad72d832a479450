"""The devices, the cost and the budget of a run: the amounts after which it ends; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cluster.config.schema import Config, IslandGroup
from cluster.status import RunStatus


class Spent(NamedTuple):
    """The cost of a run so far."""

    device_hours: float
    """Hours for which islands have held devices, summed over devices, without spares."""
    usd: float | None
    """Dollars; None unless every group has a price."""


def devices_of(group: IslandGroup) -> float:
    """Return the devices of one island of a group: chips, or on CPUs the devices of its mesh.

    Without sizes of a mesh, an island on CPUs has one device on each host. A share of a GPU counts
    as that share.
    """
    if group.on_cpu:
        return float(group.mesh.devices or group.hosts)
    held = group.devices
    return group.hosts * (held.get("GPU") or held.get("TPU") or 1.0)


def spent(config: Config, island_hours: Mapping[str, float]) -> Spent:
    """Return the cost of islands that have held their machines for so many hours, by group."""
    hours = {
        group.group: island_hours.get(group.group, 0.0) * devices_of(group)
        for group in config.islands
    }
    prices = {group.group: group.usd_per_hour for group in config.islands}
    known = {name: price for name, price in prices.items() if price is not None}
    usd = sum(known[name] * hours[name] for name in known) if len(known) == len(prices) else None
    return Spent(sum(hours.values()), usd)


def reason_to_stop(config: Config, status: RunStatus) -> str | None:
    """Return why a run with this status must end; None while it is within its budget."""
    budget, island_hours = config.run.budget, status.get("island_hours")
    if budget is None or island_hours is None:
        return None
    used = spent(config, island_hours)
    if budget.device_hours is not None and used.device_hours >= budget.device_hours:
        return f"run.budget.device_hours: {budget.device_hours:g} are used"
    if budget.usd is not None and used.usd is not None and used.usd >= budget.usd:
        return f"run.budget.usd: {budget.usd:g} dollars are used"
    return None
