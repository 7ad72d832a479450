"""The files `contributions/`: deltas as they were handed in, kept for replay.

They are written if `durability.keep_contributions` is set. Those of a region with a store of its
own (`regions.NAME.durability.dir`) are stored only there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cluster.names import group_name
from cluster.storage.depot import Depot
from cluster.storage.sealed import SUFFIX, seal, unseal, verified_sha256
from coordinator.codec import Sent, joined, split
from coordinator.protocol import ContributionId, Fragment

log = logging.getLogger("archipelago.depot")
CONTRIBUTIONS = "contributions"


class KeptContribution(NamedTuple):
    """The place of a contribution: a depot, and a name in it."""

    depot: Depot
    name: str


class ContributionStore:
    """The kept contributions of a run, each in the depot of its region, or else of the run."""

    def __init__(self, depot: Depot, of_group: Mapping[str, Depot] | None = None) -> None:
        """Open no file yet.

        `depot`: that of the run. `of_group`: another depot for the islands of some groups.
        """
        self._depot, self._of_group = depot, dict(of_group or {})
        self._by_name = {str(each): each for each in (depot, *self._of_group.values())}

    @property
    def depots(self) -> tuple[str, ...]:
        """The name of each depot once, that of the run first: groups of one region share one."""
        return tuple(self._by_name)

    def depot_of(self, contribution: ContributionId) -> str:
        """Return the name of the depot that has a contribution."""
        return str(self._place(contribution).depot)

    def save(self, contribution: ContributionId, sent: Sent, layout: str) -> None:
        """Store a contribution as it was encoded.

        Errors: `OSError`.
        """
        difference, moments = split(sent)
        parts = {"payload": difference} | ({} if moments is None else {"moments": moments})
        depot, name = self._place(contribution)
        depot.write(name, *seal(parts, layout))

    def load(self, contribution: ContributionId, layout: str) -> Sent:
        """Return a contribution as it was encoded.

        Errors: `Damaged` if it was not kept, or has changed since it was written.
        """
        parts = unseal(*self._place(contribution), layout)
        return joined(parts["payload"], parts.get("moments"))

    def sha256(self, contribution: ContributionId, layout: str) -> str | None:
        """Return the digest of a contribution, after comparing its content with it.

        Return None if it was not kept.

        Errors: `Damaged` if it has changed since it was written; `OSError` if its depot cannot be
        reached.
        """
        depot, name = self._place(contribution)
        return verified_sha256(depot, name, layout) if depot.has(name) else None

    def tidy(self, depot: str, p: Fragment) -> None:
        """Delete temporary files of a fragment that crashed writers have left in a depot.

        `depot`: its name. Without an answer of it the files stay, and this is logged.
        """
        try:
            self._by_name[depot].tidy(f"{_folder_of(p)}/")
        except OSError as error:
            log.warning("temporary files in %s stay: %s", depot, error)

    def kept(self) -> Iterator[KeptContribution]:
        """Yield all kept contributions.

        Errors: `OSError` if a depot cannot be reached.
        """
        for depot in self._by_name.values():
            for folder in sorted(depot.names(CONTRIBUTIONS)):
                for name in sorted(depot.names(f"{CONTRIBUTIONS}/{folder}")):
                    if name.endswith(SUFFIX):
                        yield KeptContribution(depot, f"{CONTRIBUTIONS}/{folder}/{name}")

    def _place(self, contribution: ContributionId) -> KeptContribution:
        life, fragment, start, stop = contribution
        name = f"{life.island}.{life.incarnation}-{start}-{stop}{SUFFIX}"
        depot = self._of_group.get(group_name(life.island), self._depot)
        return KeptContribution(depot, f"{_folder_of(fragment)}/{name}")


def _folder_of(p: Fragment) -> str:
    """Return the folder of the contributions to this fragment."""
    return f"{CONTRIBUTIONS}/f{p:04}"
