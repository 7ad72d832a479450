"""The file `fleet.json`: the part of a fleet's state that outlives its process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from cluster.storage.depot import Depot
from cluster.storage.files import json_bytes, json_text
from cluster.storage.format import Damaged

if TYPE_CHECKING:
    from cluster.names import Seat
    from coordinator.protocol import Island

FLEET_FILE = "fleet.json"
"""The name in the depot."""


class FleetMemory(TypedDict):
    """The memory of a fleet, as it is in the file."""

    desired: list[Island]
    """Islands that the fleet should run."""
    held: dict[Island, Seat]
    """Islands that have devices or wait for them, each with its seat."""
    spares: dict[Seat, str]
    """Spares by seat, each with its group."""
    withheld: dict[Island, str]
    """Islands that the queue of the cluster has the run do without, each with the reason."""
    stopping: str | None
    """The reason for which the run is being stopped; None if it is not."""
    faults: list[int]
    """Faults of the plan that have been injected."""
    began: float
    """The time when the run began, in seconds since 1970 by the wall clock."""
    outcome: dict[str, Any] | None
    """The outcome of the run; None while it is running."""


def save_fleet_memory(depot: Depot, memory: FleetMemory) -> None:
    """Replace the file by this memory, with a checksum.

    Errors: `OSError`.
    """
    plain = json.loads(json_text(memory))
    depot.write(FLEET_FILE, json_bytes({**plain, "sha256": _digest(plain)}))


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_text(plain).encode()).hexdigest()


def load_fleet_memory(depot: Depot) -> FleetMemory | None:
    """Return the memory that a fleet has written; None if no fleet has begun.

    Errors: `Damaged`.
    """
    try:
        plain = json.loads(depot.read(FLEET_FILE))
        digest = plain.pop("sha256", None)  # earlier versions wrote no checksum
        known: dict[str, Any] = {"withheld": {}, **plain}  # earlier versions wrote no such field
        memory = FleetMemory(**{key: known[key] for key in FleetMemory.__annotations__})
        why = "" if digest in (None, _digest(plain)) else "it is not as it was written"
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(_unreadable(depot, repr(error))) from error
    if why:
        raise Damaged(_unreadable(depot, why))
    return memory


def _unreadable(depot: Depot, why: str) -> str:
    return (
        f"{FLEET_FILE} in {depot} cannot be used: {why}; `archipelago run CONFIG.toml --resume "
        "--run-dir RUN` continues without it, with the islands of the configuration"
    )
