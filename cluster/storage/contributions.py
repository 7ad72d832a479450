"""The files `contributions/`: deltas as they were handed in, kept for replay.

They are written if `durability.keep_contributions` is set.
"""

from __future__ import annotations

from cluster.storage.depot import Depot
from cluster.storage.sealed import SUFFIX, seal, unseal, verified_sha256
from coordinator.codec import Sent, joined, split
from coordinator.protocol import ContributionId, Fragment


def save_contribution(depot: Depot, contribution: ContributionId, sent: Sent, layout: str) -> None:
    """Store a contribution as it was encoded.

    Errors: `OSError`.
    """
    difference, moments = split(sent)
    parts = {"payload": difference} | ({} if moments is None else {"moments": moments})
    depot.write(_contribution_name(contribution), *seal(parts, layout))


def load_contribution(depot: Depot, contribution: ContributionId, layout: str) -> Sent:
    """Return a contribution as it was encoded.

    Errors: `Damaged` if it was not kept, or has changed since it was written.
    """
    parts = unseal(depot, _contribution_name(contribution), layout)
    return joined(parts["payload"], parts.get("moments"))


def contribution_sha256(depot: Depot, contribution: ContributionId, layout: str) -> str:
    """Return the digest of a contribution that was kept, after comparing its content with it.

    Errors: the errors of `load_contribution`.
    """
    return verified_sha256(depot, _contribution_name(contribution), layout)


def _contribution_name(contribution: ContributionId) -> str:
    life, fragment, start, stop = contribution
    name = f"{life.island}.{life.incarnation}-{start}-{stop}{SUFFIX}"
    return f"{contributions_of(fragment)}/{name}"


def contributions_of(p: Fragment) -> str:
    """Return the folder of the contributions to this fragment."""
    return f"contributions/f{p:04}"
