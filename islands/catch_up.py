"""How a host catches up with a fragment of which it missed a publication."""

from __future__ import annotations

import logging
from collections.abc import Callable

from coordinator.errors import Unreachable
from coordinator.protocol import Fragment, Version
from islands.exchange import Missed
from islands.link import Link

AGAIN_S = 0.5
"""Between two attempts to ask a shard for what was missed."""


def catch_up(
    link: Link,
    p: Fragment,
    older: Version,
    newer: Version,
    over_within: Callable[[float], bool],
    log: logging.Logger,
) -> Missed | None:
    """Ask the shard for what leads from one version to another, until it answers.

    `over_within`: waits so many seconds for the end of the life, and returns whether it came.
    Returns None if the life is over first.
    """
    while True:
        try:
            return link.missed(p, older, newer)
        except Unreachable as error:
            log.info("%s; trying again", error)
        if over_within(AGAIN_S):
            return None
