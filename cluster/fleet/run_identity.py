"""The figures of a summary that identify a run: its configuration, versions, devices and cost."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from cluster.config.schema import Config
from cluster.fleet.budget import devices_of, spent
from cluster.source import source_sha256

SCHEMA = 1
"""The version of the keys of `summary.json`, `metrics.jsonl` and `events.jsonl`.

It grows when a key changes its meaning or goes, not when a key is added.
"""
DISTRIBUTION = "archipelago-diloco"
"""The name of this project as an installed package."""
PACKAGES = ("ray", "jax", "jaxlib", "optax", "numpy")
"""Installed packages whose versions decide what a run computes."""


def versions() -> dict[str, str]:
    """Return the versions of Python, of this project and of `PACKAGES`, as far as installed."""
    found = {"python": platform.python_version()}
    for name, package in (("archipelago", DISTRIBUTION), *((each, each) for each in PACKAGES)):
        try:
            found[name] = version(package)
        except PackageNotFoundError:  # a submitted job has our packages as folders
            continue
    return found


def _whole(count: float) -> float:
    """Return a count as an integer, unless it has shares of a device."""
    return int(count) if count.is_integer() else count


def identity_of(
    config: Config, run: str, parameters: int, measured: Mapping[str, object]
) -> dict[str, object]:
    """Return the keys of a summary that identify a run, and its devices and cost.

    `measured`: the syncer's figures; `island_hours` of each group is read. Without it, hours and
    cost are None. The cost is also None unless every group has a price.
    """
    figures: dict[str, object] = {
        "schema": SCHEMA,
        "run": run,
        "seed": config.run.seed,
        "mode": config.run.mode.value,
        "config_sha256": config.sha256,
        "source_sha256": source_sha256(),
        "versions": versions(),
        "parameters": parameters,
        "devices": _whole(sum(group.count * devices_of(group) for group in config.islands)),
        "device_hours": None,
        "usd": None,
    }
    hours = measured.get("island_hours")
    if isinstance(hours, Mapping):
        used = spent(config, hours)
        figures |= {"device_hours": used.device_hours, "usd": used.usd}
    return figures
