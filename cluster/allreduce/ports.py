"""The conductor's interface to islands and to the meeting points of rings.

Ray and the tests each implement it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cluster.allreduce.saved_state import RingState
from coordinator.protocol import Life


@dataclass(frozen=True, slots=True)
class StateUnavailable:
    """The answer of an island that does not give its state."""

    why: str
    """The reason."""
    again: bool
    """True if a retry may succeed."""


class RingPorts(Protocol):
    """The conductor's interface to islands and to the meeting points of rings."""

    async def meet(self, ring: int, members: int) -> str:
        """Close the previous ring's meeting point, open one for this ring and return its address.

        The address is empty for a single member.

        Errors: `OSError`.
        """
        ...

    async def part(self, ring: int) -> None:
        """Close the meeting point of this ring, if it is open; members that wait there end."""
        ...

    async def watch(self, life: Life) -> str:
        """Wait until this life is over, and return the reason."""
        ...

    async def pause(self, life: Life, ring: int) -> None:
        """Order a member to leave this ring after its current step; a no-op if it is dead."""
        ...

    async def end(self, life: Life) -> None:
        """End the process of this life."""
        ...

    async def state_of(self, life: Life) -> RingState | StateUnavailable:
        """Return the state that this life has on its host, or why it cannot."""
        ...
