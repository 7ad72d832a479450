"""The opening of the depots of a run: its own, and those of its regions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cluster.storage.contributions import ContributionStore
from cluster.storage.depot import Depot
from cluster.storage.folder import Folder

if TYPE_CHECKING:
    from cluster.config.schema import Config

PATIENCE_S = 60.0
"""Seconds for which a caller that can give up retries a depot or its shard."""


def depot_of(config: Config, run_dir: Path) -> Depot:
    """Open the run's durable store.

    It is `<durability.dir>/<run name>`, or the run directory if that key is not set.
    """
    location = config.durability.dir
    return Folder(run_dir) if location is None else _depot_at(location, run_dir)


def region_depots(config: Config, run_dir: Path) -> dict[str, Depot]:
    """Open the stores of the regions that have one of their own, by region."""
    return {
        name: _depot_at(region.durability.dir, run_dir)
        for name, region in config.regions.items()
        if region.durability.dir is not None
    }


def contribution_store(config: Config, run_dir: Path) -> ContributionStore:
    """Open the kept contributions of a run, those of a region in its own store if it has one."""
    of_region = region_depots(config, run_dir)
    of_group = {
        group.group: of_region[group.region]
        for group in config.islands
        if group.region in of_region
    }
    return ContributionStore(depot_of(config, run_dir), of_group)


def _depot_at(location: str, run_dir: Path) -> Depot:
    """Open `<location>/<run name>`."""
    name = run_dir.absolute().name
    if location.startswith("/"):
        return Folder(Path(location) / name)
    from cluster.storage.bucket import Bucket  # imports pyarrow, which not every run needs

    return Bucket(location, name)
