"""The places in rings that the processes of islands wait for."""

from __future__ import annotations

import asyncio

from cluster.allreduce.ring_messages import Form, RingDecision
from coordinator.protocol import Life

WAIT_S = 10.0
"""Seconds after which an island that waits for a place is answered, so that it asks again."""


class RingPlaces:
    """The lives that wait for a place in a ring; for one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Life, asyncio.Future[RingDecision | None]] = {}

    def __contains__(self, life: Life) -> bool:
        return life in self._waiting

    def open(self, life: Life) -> None:
        """Let this life wait for a place from now on."""
        self._waiting[life] = asyncio.get_running_loop().create_future()

    async def wait(self, life: Life) -> tuple[bool, RingDecision | None]:
        """Return whether this life has to ask again, and its place; None if it gets none."""
        place = self._waiting[life]
        done, _ = await asyncio.wait({place}, timeout=WAIT_S)
        if not done:
            return True, None
        if self._waiting.get(life) is place:
            del self._waiting[life]
        return False, place.result()

    def assign(self, form: Form, address: str) -> None:
        """Answer the members of a ring with their places in it."""
        for rank, life in enumerate(form.members):
            turn = RingDecision(form.ring, address, rank, len(form.members), form.held, form.donor)
            self.answer(life, turn)

    def answer(self, life: Life, turn: RingDecision | None) -> None:
        """Answer a waiting life with its place or with None; a no-op if it does not wait."""
        place = self._waiting.get(life)
        if place is not None and not place.done():
            place.set_result(turn)

    def forget(self, life: Life) -> None:
        """Forget that this life waits, without an answer."""
        self._waiting.pop(life, None)
