"""The check before a run begins that its durable stores can be written and hold no run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cluster.storage.depot import Depot
from cluster.storage.open_depot import depot_of, region_depots

if TYPE_CHECKING:
    from cluster.config.schema import Config


def store_problems(config: Config, run_dir: Path) -> list[str]:
    """Return why no run can begin in its stores, those of regions included; empty: it can."""
    own = region_depots(config, run_dir)
    stores = [
        (f"regions.{name}.durability.dir", config.regions[name].durability.dir, depot)
        for name, depot in own.items()
    ]
    if config.durability.dir is not None:
        stores.append(("durability.dir", config.durability.dir, depot_of(config, run_dir)))
    return [why for each in stores if (why := _unfit(*each)) is not None]


def _unfit(key: str, given: str | None, depot: Depot) -> str | None:
    """Return why no run can begin there; no trace of the check is left."""
    try:
        depot.probe()
        if not depot.names():
            return None
    except OSError as error:
        return _unusable(f"{key}: {given}", error)
    return (
        f"{key}: {depot} holds a run already; give this one another name with "
        "--set run.name=NAME or --run-dir DIR"
    )


def unusable(config: Config, error: OSError) -> str:
    """Return the message for a durable store that cannot be used."""
    return _unusable(f"durability.dir: {config.durability.dir}", error)


def _unusable(store: str, error: OSError) -> str:
    return f"{store}: {error.strerror or error}"
