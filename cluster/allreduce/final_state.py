"""How the final state of a run is fetched from the islands that have it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from cluster.allreduce.ports import RingPorts
from cluster.allreduce.ring_messages import TrainingPosition
from cluster.allreduce.saved_state import RingState
from coordinator.protocol import Life

log = logging.getLogger("archipelago.conductor")
AGAIN_S = 1.0
"""Between two attempts."""
FINAL_S = 60.0
"""An island that has the final state, and cannot send it, is asked again for so long."""


async def final_state(
    ports: RingPorts, lives: Sequence[Life], wanted: TrainingPosition, now_s: Callable[[], float]
) -> RingState | str:
    """Return the state that these lives have, from the first that gives it; else why none does.

    An island is asked again while it may give it, and the next one is asked in between.
    """
    asked = deque(lives)
    end_s, why = now_s() + FINAL_S, "no island has it"
    while asked:
        said = await ports.state_of(life := asked.popleft())
        if isinstance(said, RingState):
            if said.held == wanted:
                return said
            why = f"{life} has another one"
            continue
        why = f"{life}: {said.why}"
        log.warning("the final state is not given, %s", why)
        if said.again and now_s() < end_s:
            asked.append(life)
            await asyncio.sleep(AGAIN_S)
    return why
