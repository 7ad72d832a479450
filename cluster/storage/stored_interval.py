"""The H and P that a run chose when it began, for its later fleets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cluster.storage import runs
from cluster.storage.open_depot import depot_of
from cluster.storage.store_check import unusable
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    from cluster.config.schema import Config


def with_stored_interval(config: Config, run_dir: Path | None) -> Config:
    """Return the configuration with the H and P of the run's own if `sync.every` is "auto".

    Errors: `UserMistake` if neither directory nor name is given, or its file cannot be read.
    """
    if config.sync.every != "auto":
        return config
    depot = depot_of(config, runs.resumed_dir(config, run_dir))
    try:
        if not depot.has(runs.CONFIG):
            return config  # `runs.resume` refuses it
        stored = runs.begun(depot).sync
    except OSError as error:
        raise UserMistake(unusable(config, error)) from error
    update = {"every": stored.every, "fragments": stored.fragments}
    return config.model_copy(update={"sync": config.sync.model_copy(update=update)})
