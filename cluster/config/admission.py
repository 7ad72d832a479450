"""Admission of islands to a run, by name and group."""

from __future__ import annotations

import re

from cluster.config.schema import Config
from coordinator.protocol import Join

ISLAND = re.compile(r"(?P<group>[a-z0-9-]{1,40})-(0|[1-9][0-9]{0,5})(\.[0-9]{1,6})?", re.ASCII)
"""The pattern of an island's name: `eu-3`; `crew-3.7` is a light learner (`names.seat_of`)."""
LONGEST_SHOWN = 60
"""The most characters of an unchecked name that a message shows."""


def reason_to_refuse(config: Config, join: Join) -> str | None:
    """Return why this learner may not join the run, even after a scale-up; None if it may.

    Files and actors are named after islands, so this check makes every admitted name safe for them.
    """
    if (named := ISLAND.fullmatch(join.island)) is None:
        return f"{join.island[:LONGEST_SHOWN]!r} is no island's name, such as eu-3"
    groups = {group.group: group for group in config.islands}
    if (group := groups.get(named["group"])) is None:
        return f"{join.island} is of no group of this run, which has {', '.join(groups)}"
    if (join.group, join.region) != (group.group, group.region):
        group_claim, region_claim = join.group[:LONGEST_SHOWN], str(join.region)[:LONGEST_SHOWN]
        claim = f"group {group_claim!r} and region {region_claim!r}"
        return f"{join.island} says {claim}, but its group's region is {str(group.region)!r}"
    return None
