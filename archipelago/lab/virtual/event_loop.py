"""An event loop with a virtual clock: the syncer's shell runs on it, unchanged and fast.

The loop implements only the methods that `asyncio.Task`, `asyncio.Future` and the shell
(`cluster.syncer.shell`) call. Time advances when nothing is left to run at the present moment. Ties
are broken by the order of the calls, so that a seed gives the same run everywhere.
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
    """An event loop in virtual seconds since the beginning; `run` drives it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.takes_s: Callable[[], float] = lambda: 0.0  # virtual duration of a thread pool's job
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._later: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._asked = 0
        self._handle = asyncio.Handle(lambda: None, (), self)  # shared: never cancelled

    # --- the interface that asyncio needs ---------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_s

    def get_debug(self) -> bool:
        """Return False: there is no debug mode."""
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: object = None
    ) -> asyncio.Handle:
        """Call at the present virtual time, after all that is already scheduled for it."""
        self._ready.append((callback, args))
        return self._handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: object = None
    ) -> asyncio.TimerHandle:
        """Call after `delay` virtual seconds."""
        handle = asyncio.TimerHandle(self.now_s + delay, callback, args, self)
        self.at(handle.when(), self._ring, handle, callback, args)
        return handle

    def _ring(
        self, handle: asyncio.TimerHandle, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if not handle.cancelled():
            callback(*args)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer stays on the heap and is skipped there."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: object = None
    ) -> asyncio.Task[T]:
        """Return a task of this loop."""
        return asyncio.Task(coro, loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` at once; return its result or exception `takes_s` virtual seconds later."""
        job: asyncio.Future[T] = asyncio.Future(loop=self)
        try:
            self.at(self.now_s + self.takes_s(), settle, job, func(*args))
        except Exception as error:  # noqa: BLE001 - raised where the job is awaited
            self.at(self.now_s + self.takes_s(), fail, job, error)
        return job

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise `AssertionError`: no error is expected to reach the loop."""
        raise AssertionError(f"{context.get('message')}: {context}")

    # --- the interface that the simulation needs --------------------------------------------------

    def at(self, when_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Call at this time, or as soon as possible if it has passed."""
        self._asked += 1
        heapq.heappush(self._later, (when_s, self._asked, callback, args))

    async def pause(self, delay_s: float) -> None:
        """Sleep for `delay_s` virtual seconds."""
        waiter: asyncio.Future[None] = asyncio.Future(loop=self)
        self.at(self.now_s + delay_s, settle, waiter, None)
        await waiter

    def run(self, until_s: float, done: Callable[[], bool]) -> None:
        """Run until `done`, checked after each call, or until the clock would pass `until_s`.

        An exception from a callback ends the run and is passed on.
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
        """Let cancelled tasks finish."""
        while self._ready:
            callback, args = self._ready.popleft()
            callback(*args)


def settle(waiter: asyncio.Future[T], value: T) -> None:
    """Set the result of a future, unless it is already done."""
    if not waiter.done():
        waiter.set_result(value)


def fail(waiter: asyncio.Future[Any], error: Exception) -> None:
    """Set the exception of a future, unless it is already done."""
    if not waiter.done():
        waiter.set_exception(error)


@contextmanager
def running(loop: VirtualLoop) -> Generator[VirtualLoop]:
    """Make `loop` the one that `asyncio.get_running_loop` finds."""
    asyncio.events._set_running_loop(loop)  # as every event loop does
    try:
        yield loop
    finally:
        asyncio.events._set_running_loop(None)
