"""Who may be an island of a run, by its name and its group."""

from __future__ import annotations

import re

from cluster.config.schema import Config
from coordinator.protocol import Join

ISLAND = re.compile(r"(?P<group>[a-z0-9-]{1,40})-(0|[1-9][0-9]{0,5})(\.[0-9]{1,6})?", re.ASCII)
"""`eu-3`; `crew-3.7` is a light learner's (`names.seat_of`)."""
LONGEST_TOLD = 60
"""Characters of a name that may be anything."""


def stranger(config: Config, who: Join) -> str | None:
    """Why nobody like this can be of the run, whatever islands were added to it; None if it may.

    Files and actors are called after islands: what is let in here need not be checked there.
    """
    if (named := ISLAND.fullmatch(who.island)) is None:
        return f"{who.island[:LONGEST_TOLD]!r} is no island's name, such as eu-3"
    groups = {group.group: group for group in config.islands}
    if (group := groups.get(named["group"])) is None:
        return f"{who.island} is of no group of this run, which has {', '.join(groups)}"
    if (who.group, who.region) != (group.group, group.region):
        said = f"group {who.group[:LONGEST_TOLD]!r} and region {str(who.region)[:LONGEST_TOLD]!r}"
        return f"{who.island} says {said}, but its group's region is {str(group.region)!r}"
    return None
