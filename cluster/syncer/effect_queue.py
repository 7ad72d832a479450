"""The queue of effects that wait until the tape is durable up to their event.

A promise is flushed before it is carried out. All later effects wait behind a flush, so that they
are carried out in their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future

from coordinator.protocol import Effect

FLUSH_TIMEOUT_S = 6.0
"""A little longer than a tape needs to notice that its depot does not answer, seconds."""


class EffectQueue:
    """A queue of effects in their order, for one event loop.

    `flushed`: the last flush of the tape, None if it was done at once. The caller that begins a
    flush sets it.
    """

    def __init__(
        self,
        carry_out: Callable[[Effect], None],
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._carry_out, self._spawn = carry_out, spawn
        self.flushed: Future[None] | None = None
        self._held: deque[tuple[Future[None] | None, tuple[Effect, ...]]] = deque()

    def put(self, effects: tuple[Effect, ...]) -> None:
        """Carry effects out now, or once the last flush is over and all earlier effects are out.

        Errors: the errors of `is_done`, and of carrying the effects out.
        """
        if is_done(self.flushed) and not self._held:
            for effect in effects:
                self._carry_out(effect)
        elif effects:
            self._held.append((self.flushed, effects))
            if len(self._held) == 1:
                self._spawn(self._release_held())

    async def _release_held(self) -> None:
        while self._held:
            flushed, effects = self._held[0]
            await done(flushed)
            for effect in effects:
                self._carry_out(effect)
            self._held.popleft()

    async def durable(self) -> None:
        """Return when everything promised so far is on the tape."""
        await done(self.flushed)


def is_done(flushed: Future[None] | None) -> bool:
    """Return whether a flush is over.

    Errors: an unexpected exception of the flush, which is not an error of the storage; then nothing
    may count as durable.
    """
    if flushed is None or not flushed.done():
        return flushed is None
    flushed.result()
    return True


async def done(flushed: Future[None] | None) -> None:
    """Wait for a flush, up to `FLUSH_TIMEOUT_S`: then the run continues without being durable.

    Errors: the errors of `is_done`.
    """
    if not is_done(flushed) and flushed is not None:
        waiting = asyncio.wrap_future(flushed)
        await asyncio.wait([waiting], timeout=FLUSH_TIMEOUT_S)
        if waiting.done():
            waiting.result()
