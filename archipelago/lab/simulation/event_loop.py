"""An event loop whose clock is a number: the syncer's shell runs on it, unchanged and fast.

Only what `asyncio.Task`, `asyncio.Future` and the shell (`cluster.syncer.shell`) ask of a loop is
there. Time passes when nothing is left to do at the present moment; ties are broken by the order of
asking, so that a seed gives the same run everywhere.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.AbstractEventLoop):
    """Virtual seconds since the beginning; `run` drives it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.takes_s: Callable[[], float] = lambda: 0.0  # each job of a thread pool
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._later: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._asked = 0
        self._handle = asyncio.Handle(lambda: None, (), self)  # nobody cancels what is to run now

    # --- what asyncio asks of a loop --------------------------------------------------------------

    def time(self) -> float:
        return self.now_s

    def get_debug(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: object = None
    ) -> asyncio.Handle:
        self._ready.append((callback, args))
        return self._handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: object = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.now_s + delay, callback, args, self)
        self.at(handle.when(), self._ring, handle, callback, args)
        return handle

    def _ring(
        self, handle: asyncio.TimerHandle, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if not handle.cancelled():
            callback(*args)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays on the heap and finds itself cancelled."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: object = None
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` at once, and let its result be known after `takes_s` of virtual time."""
        job: asyncio.Future[T] = asyncio.Future(loop=self)
        try:
            self.at(self.now_s + self.takes_s(), settle, job, func(*args))
        except Exception as error:  # noqa: BLE001 - raised where the job is awaited
            self.at(self.now_s + self.takes_s(), fail, job, error)
        return job

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise AssertionError(f"{context.get('message')}: {context}")

    # --- what a simulation asks of it -------------------------------------------------------------

    def at(self, when_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Call at this time, or as soon as possible if that has passed."""
        self._asked += 1
        heapq.heappush(self._later, (when_s, self._asked, callback, args))

    async def pause(self, delay_s: float) -> None:
        """Sleep."""
        waiter: asyncio.Future[None] = asyncio.Future(loop=self)
        self.at(self.now_s + delay_s, settle, waiter, None)
        await waiter

    def run(self, until_s: float, done: Callable[[], bool]) -> None:
        """Run until `done`, looked at after each call, or until the clock passes `until_s`.

        What a callback raises ends the run and comes through.
        """
        ready, later, pop = self._ready, self._later, heapq.heappop
        while not done():
            if ready:
                callback, args = ready.popleft()
            elif later and later[0][0] <= until_s:
                when_s, _, callback, args = pop(later)
                if when_s > self.now_s:
                    self.now_s = when_s
            else:
                return
            callback(*args)

    def finish(self) -> None:
        """Let tasks that were cancelled come to their end."""
        while self._ready:
            callback, args = self._ready.popleft()
            callback(*args)


def settle(waiter: asyncio.Future[T], value: T) -> None:
    """Answer somebody who may have stopped waiting."""
    if not waiter.done():
        waiter.set_result(value)


def fail(waiter: asyncio.Future[Any], error: Exception) -> None:
    """Fail somebody who may have stopped waiting."""
    if not waiter.done():
        waiter.set_exception(error)


@contextmanager
def running(loop: VirtualLoop) -> Generator[VirtualLoop]:
    """Make it the loop that `asyncio.get_running_loop` finds."""
    asyncio.events._set_running_loop(loop)  # as every event loop does
    try:
        yield loop
    finally:
        asyncio.events._set_running_loop(None)
