"""The retrieval of a run's final state from the islands that have it."""

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
"""Seconds between two attempts."""
FINAL_S = 60.0
"""Seconds for which an island that has the final state but cannot send it is asked again."""


async def final_state(
    ports: RingPorts, lives: Sequence[Life], wanted: TrainingPosition, now_s: Callable[[], float]
) -> RingState | str:
    """Return the state from the first of these lives that gives it, or the reason why none does.

    An island that may give it later is asked again, after the other ones.
    """
    candidates = deque(lives)
    end_s, why = now_s() + FINAL_S, "no island has it"
    while candidates:
        answer = await ports.state_of(life := candidates.popleft())
        if isinstance(answer, RingState):
            if answer.held == wanted:
                return answer
            why = f"{life} has another one"
            continue
        why = f"{life}: {answer.why}"
        log.warning("the final state is not given, %s", why)
        if answer.again and now_s() < end_s:
            candidates.append(life)
            await asyncio.sleep(AGAIN_S)
    return why
