"""The retries of a host that missed a publication of a fragment."""

from __future__ import annotations

import logging
from collections.abc import Callable

from coordinator.errors import Unreachable
from coordinator.protocol import Fragment, Version
from islands.exchange import Missed
from islands.link import Link

AGAIN_S = 0.5
"""Seconds between two attempts to ask a shard for the missed deltas."""


def catch_up(
    link: Link,
    p: Fragment,
    older: Version,
    newer: Version,
    over_within: Callable[[float], bool],
    log: logging.Logger,
) -> Missed | None:
    """Ask the shard for the deltas from one version to another, until it answers.

    `over_within`: waits up to this many seconds for the end of the life, and returns whether it
    came. Returns None if the life is over first.
    """
    while True:
        try:
            return link.missed(p, older, newer)
        except Unreachable as error:
            log.info("%s; trying again", error)
        if over_within(AGAIN_S):
            return None
