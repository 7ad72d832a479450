"""Admission of islands to a run, by name and group."""

from __future__ import annotations

import re

from cluster.config.schema import Config
from coordinator.protocol import Join

ISLAND = re.compile(r"(?P<group>[a-z0-9-]{1,40})-(0|[1-9][0-9]{0,5})(\.[0-9]{1,6})?", re.ASCII)
"""The pattern of an island's name: `eu-3`; `crew-3.7` is a light learner (`names.seat_of`)."""
LONGEST_TOLD = 60
"""The most characters of an unchecked name that a message shows."""


def stranger(config: Config, who: Join) -> str | None:
    """Return why this learner may not join the run, even after a scale-up; None if it may.

    Files and actors are named after islands, so this check makes every admitted name safe for them.
    """
    if (named := ISLAND.fullmatch(who.island)) is None:
        return f"{who.island[:LONGEST_TOLD]!r} is no island's name, such as eu-3"
    groups = {group.group: group for group in config.islands}
    if (group := groups.get(named["group"])) is None:
        return f"{who.island} is of no group of this run, which has {', '.join(groups)}"
    if (who.group, who.region) != (group.group, group.region):
        claim = f"group {who.group[:LONGEST_TOLD]!r} and region {str(who.region)[:LONGEST_TOLD]!r}"
        return f"{who.island} says {claim}, but its group's region is {str(group.region)!r}"
    return None
