"""The opening of a ring's meeting point, with retries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cluster.allreduce.ports import RingPorts
from cluster.allreduce.ring_messages import Form

log = logging.getLogger("archipelago.conductor")
AGAIN_S = 1.0
"""Seconds between two attempts to open a meeting point."""
MEETINGS = 5
"""Attempts to open a meeting point; after the last one the conductor's process restarts."""


async def open_meeting_point(
    ports: RingPorts, form: Form, is_off: Callable[[], bool]
) -> str | None:
    """Return the address where the members of this ring meet; None if it is called off first.

    `is_off`: returns whether the ring is called off.

    Errors: `OSError` of the last attempt.
    """
    attempt = 0
    while not is_off():
        attempt += 1
        try:
            address = await ports.meet(form.ring, len(form.members))
        except OSError as error:
            if attempt == MEETINGS:
                raise
            log.warning("no meeting point for ring %d: %s", form.ring, error)
            await asyncio.sleep(AGAIN_S)
        else:
            return None if is_off() else address
    return None
