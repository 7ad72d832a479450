"""Opening the depot of a run, and patience with one that cannot be had at present."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cluster.storage.depot import Depot
from cluster.storage.folder import Folder

if TYPE_CHECKING:
    from cluster.config.schema import Config


log = logging.getLogger("archipelago.depot")
PATIENCE_S, AGAIN_S = 60.0, 1.0
"""So long whoever comes back waits for a depot that cannot be had, and between two attempts."""
T = TypeVar("T")


def depot_of(config: Config, run_dir: Path) -> Depot:
    """Open the run's durable store: `<durability.dir>/<run name>`, or the run directory if that key
    is not set."""
    if config.durability.dir is None:
        return Folder(run_dir)
    there, name = config.durability.dir, run_dir.absolute().name
    if there.startswith("/"):
        return Folder(Path(there) / name)
    from cluster.storage.bucket import Bucket  # pyarrow, which not everybody needs

    return Bucket(there, name)


def patiently(read: Callable[[], T]) -> T:
    """What is read, for whoever cannot go on without.

    Errors: `OSError` if it cannot be had for `PATIENCE_S`.
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
