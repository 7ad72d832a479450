"""The file `fleet.json`: what outlasts the process of a fleet."""

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


class FleetMemory(TypedDict):
    """The memory of a fleet, as it is in the file."""

    desired: list[Island]  # that shall be there
    held: dict[Island, Seat]  # that have devices, or wait for them, and where
    spares: dict[Seat, str]  # of which group
    stopping: str | None
    faults: list[int]  # of the plan, that have happened
    began: float  # wall clock, seconds since 1970
    outcome: dict[str, Any] | None  # how the run ended; None while it goes on


def save_fleet_memory(depot: Depot, memory: FleetMemory) -> None:
    """Replace the file by this memory, with a checksum.

    Errors: `OSError`.
    """
    plain = json.loads(json_text(memory))
    depot.write(FLEET_FILE, json_bytes({**plain, "sha256": _digest(plain)}))


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_text(plain).encode()).hexdigest()


def load_fleet_memory(depot: Depot) -> FleetMemory | None:
    """Return what a fleet has written; None if no fleet has begun.

    Errors: `Damaged`.
    """
    try:
        plain = json.loads(depot.read(FLEET_FILE))
        digest = plain.pop("sha256", None)  # which earlier versions did not write
        memory = FleetMemory(**{key: plain[key] for key in FleetMemory.__annotations__})
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
        f"{FLEET_FILE} in {depot} cannot be used: {why}; `archipelago run --resume` goes on "
        "without it, with the islands of the configuration"
    )
