"""The one place where asyncio tasks are created, and hooks for exceptions that are never awaited.

A task that is started and forgotten can be garbage-collected while it runs, and its exception is
only printed. `Tasks` keeps every task until it ends and looks at its exception. A test checks that
no other module of `cluster` starts one (`tests/test_tasks.py`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

log = logging.getLogger("archipelago.tasks")
Failed = Callable[[BaseException], None]
"""The owner's failure callback: called once with each exception, and must not raise."""
T = TypeVar("T")


def log_only(error: BaseException) -> None:
    """Log an exception of a task whose starter also awaits the task and so receives it."""
    log.info("a task failed: %r", error)


class Tasks:
    """The asyncio tasks of one owner, for one event loop."""

    def __init__(self, failed: Failed = log_only) -> None:
        """Keep tasks for an owner; `failed` receives the exception of each task that raises.

        The default is for tasks whose result is always awaited: the exception is raised there.
        """
        self._failed = failed
        self._kept: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` concurrently, and report its exception to the owner."""
        task = asyncio.get_running_loop().create_task(work)
        self._kept.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks that have not ended."""
        for task in [*self._kept]:
            task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._kept.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


def heard(job: Future[Any], failed: Failed) -> None:
    """Report the exception of a thread pool's job that is never awaited, on the job's thread."""

    def done(job: Future[Any]) -> None:
        if not job.cancelled() and (error := job.exception()) is not None:
            failed(error)

    job.add_done_callback(done)


def watch_process(failed: Failed) -> None:
    """Report uncaught exceptions of threads and of the event loop's callbacks to `failed`.

    Both are also logged with their tracebacks. `failed` is called on the event loop that runs in
    the calling thread. If no loop runs there, only threads are watched, and `failed` is called on
    the thread that dies. The previous thread hook is called first.
    """
    before, loop = threading.excepthook, None
    with suppress(RuntimeError):  # no event loop runs here: the process has only threads
        loop = asyncio.get_running_loop()
        watch_loop(loop, failed)

    def thread_died(args: threading.ExceptHookArgs) -> None:
        before(args)
        error = args.exc_value
        if error is None or isinstance(error, SystemExit):
            return
        name = "?" if args.thread is None else args.thread.name
        log.error("thread %r died: %r", name, error, exc_info=error)
        if loop is None or loop.is_closed():
            failed(error)
        else:
            loop.call_soon_threadsafe(failed, error)

    threading.excepthook = thread_died


def watch_loop(loop: asyncio.AbstractEventLoop, failed: Failed) -> None:
    """Report exceptions of this loop's callbacks, and task exceptions that are never retrieved."""

    def broke(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log.error("%s: %r", context.get("message"), error, exc_info=error)
        if isinstance(error, BaseException):
            failed(error)

    loop.set_exception_handler(broke)
