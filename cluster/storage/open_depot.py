"""The opening of a run's depot, with retries while it cannot be reached."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cluster.storage.contributions import ContributionStore
from cluster.storage.depot import Depot
from cluster.storage.folder import Folder

if TYPE_CHECKING:
    from cluster.config.schema import Config


log = logging.getLogger("archipelago.depot")
PATIENCE_S, AGAIN_S = 60.0, 1.0
"""The timeout of the retries, and the seconds between two attempts."""
T = TypeVar("T")


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


def patiently(read: Callable[[], T]) -> T:
    """Retry a read until it succeeds, for callers that cannot continue without it.

    Errors: `OSError` if it still fails after `PATIENCE_S`.
    """
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return read()
        except OSError as error:
            if time.monotonic() > end_s:
                raise
            log.warning("trying again: %s", error)
            time.sleep(AGAIN_S)
