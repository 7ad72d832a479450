"""`contributions/`: what was merged, as it came, if `durability.keep_contributions` is set."""

from __future__ import annotations

from cluster.storage.depot import Depot
from cluster.storage.sealed import SUFFIX, seal, unseal
from coordinator.codec import Payload
from coordinator.protocol import ContributionId, Fragment


def save_contribution(depot: Depot, said: ContributionId, payload: Payload, layout: str) -> None:
    """Keep what was handed in, as it was encoded."""
    depot.write(_contribution_name(said), *seal({"payload": payload}, layout))


def load_contribution(depot: Depot, said: ContributionId, layout: str) -> Payload:
    """What was handed in.

    Errors: `Damaged` if it was not kept, or is not as it was written.
    """
    return unseal(depot, _contribution_name(said), layout)["payload"]


def _contribution_name(said: ContributionId) -> str:
    life, fragment, start, stop = said
    name = f"{life.island}.{life.incarnation}-{start}-{stop}{SUFFIX}"
    return f"{contributions_of(fragment)}/{name}"


def contributions_of(p: Fragment) -> str:
    return f"contributions/f{p:04}"
