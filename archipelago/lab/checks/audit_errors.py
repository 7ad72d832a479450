"""The reasons on a tape that come from errors of an island, in a region that keeps their texts.

A reason is allowed if all of it is a form that the border of the region writes, or a reason of this
program without a text of the island. Any other reason counts as the text of an error.
"""

from __future__ import annotations

import re

from archipelago.lab.checks.audit_result import TrafficKind
from cluster.failures import Reason
from cluster.workers.border import HARMLESS

_REASONS = "|".join(map(re.escape, Reason))
_CODED = rf"(?:\w+, )?error code [0-9a-f]{{8}}; its text stays in region %s(?: \((?:{_REASONS})\))?"
"""The forms of an error that the border writes: class or reason, code, and the activity."""
_OWN = re.compile(
    "|".join(
        (
            *map(re.escape, sorted(HARMLESS)),
            "nothing to hand in",
            r"its process ended \(\w+\)",
            r"\w+: (?:could not be asked|lost on its way)",
            rf"\w+ in (?:{_REASONS}): the object store had no room",
            rf"MemoryError in (?:{_REASONS})",
            r"[\w-]+ (?:is dead(?:: \w+)?|has died meanwhile): \S+ will be asked again",
            r"\S+ is over on one of its hosts",
            r"a host of \S+ cannot be asked: \w+",
        )
    )
)
"""Reasons of the syncer and the shards about an island: names, classes and activities only."""


def kind_of_reason(why: str, region: str) -> TrafficKind | None:
    """Return the kind of a reason that an island of the region sent; None if it sent none."""
    if re.fullmatch(_CODED % re.escape(region), why):
        return TrafficKind.ERROR_CODE
    return None if _OWN.fullmatch(why) else TrafficKind.ERRORS
