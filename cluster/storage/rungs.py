"""The rungs of a ladder by name, and the versions that they keep stored.

`FragmentStore` reads them, so that it deletes none of these versions; `ladder` writes them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.storage.depot import Depot
from coordinator.protocol import Fragment, Version

log = logging.getLogger("archipelago.ladder")
LADDER = "ladder"
"""The folder in the depot."""
NAMED = re.compile(r"t(?P<t>[0-9]{12})-u(?P<at>[0-9]+)(?P<state>\.state)?\.json")
"""The names in that folder."""


@dataclass(frozen=True, slots=True, order=True)
class Rung:
    """One kept state."""

    t: int
    """The syncer step of the state."""
    at_s: int
    """The time at which it was kept, in seconds since 1970."""

    @property
    def name(self) -> str:
        """The name of the file with its versions."""
        return f"{LADDER}/t{self.t:012}-u{self.at_s}.json"

    @property
    def state_name(self) -> str:
        """The name of its snapshot."""
        return self.name.removesuffix(".json") + ".state.json"


def versions_of(depot: Depot, rung: Rung) -> list[Version]:
    """Return the version of each fragment in a kept state; empty if they cannot be read.

    Errors: `OSError` if the depot does not answer.
    """
    try:
        plain = json.loads(depot.read(rung.name))["versions"]
        return [Version(int(generation), int(number)) for generation, number in plain]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        log.error("%s cannot be read: %r", rung.name, error)
        return []


class PinnedVersions:
    """The versions that kept states need; each file is read once."""

    def __init__(self, depot: Depot) -> None:
        self._depot = depot
        self._known: dict[str, Sequence[Version]] = {}

    def of(self, p: Fragment) -> set[Version]:
        """Return the versions of a fragment that must not be deleted.

        Errors: `OSError` if the depot does not answer.
        """
        names = {name: found for name in self._depot.names(LADDER) if (found := _versions(name))}
        self._known = {name: each for name, each in self._known.items() if name in names}
        for name, rung in names.items():
            if not self._known.get(name):
                self._known[name] = versions_of(self._depot, rung)
        return {versions[p] for versions in self._known.values() if p < len(versions)}


def _versions(name: str) -> Rung | None:
    """Return the rung of a file with versions; None for any other file."""
    found = NAMED.fullmatch(name)
    if found is None or found["state"]:
        return None
    return Rung(int(found["t"]), int(found["at"]))
