"""What a conductor reaches, whatever carries it: islands, and the meeting points of rings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cluster.allreduce.saved_state import RingState
from coordinator.protocol import Life


@dataclass(frozen=True, slots=True)
class StateUnavailable:
    """Why an island does not give its state. `again`: it may, if it is asked again."""

    why: str
    again: bool


class RingPorts(Protocol):
    """What a conductor reaches: islands, and the meeting points of rings."""

    async def meet(self, ring: int, members: int) -> str:
        """Close the meeting point of the ring before, and open one for this ring; return where it
        is, which is empty for a single member.

        Errors: `OSError`.
        """
        ...

    async def part(self, ring: int) -> None:
        """Close the meeting point of this ring, if it is open: members that wait there end."""
        ...

    async def watch(self, life: Life) -> str:
        """Return when this life is over, with the reason."""
        ...

    async def pause(self, life: Life, ring: int) -> None:
        """Have a member leave this ring after its step; one that is dead need not hear it."""
        ...

    async def end(self, life: Life) -> None:
        """End the process of this life."""
        ...

    async def state_of(self, life: Life) -> RingState | StateUnavailable:
        """Return the state that this life has on its host."""
        ...
