"""Locks, conditions, futures, queues, threads and clocks that a `Scheduler` controls.

They do what the standard library's do, as far as the code under test uses it. Each blocks at a
point of the scheduler, and nowhere else.
"""

from __future__ import annotations

import concurrent.futures
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.shells.scheduler import Scheduler, Task


class Stop(BaseException):
    """An exception that ends every thread that is left once the schedule is over."""


def stand_ins_of(s: Scheduler) -> dict[int, object]:
    """Return the replacement of each object of the standard library, by the `id` of that object."""

    class Lock:
        """A lock that is not reentrant."""

        reentrant = False

        def __init__(self) -> None:
            self.owner: object = None
            self.depth = 0

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            me = threading.get_ident()
            if self.reentrant and self.owner == me:
                self.depth += 1
                return True
            for_s = (None if timeout < 0 else timeout) if blocking else 0.0
            if not s.point("lock", lambda: self.owner is None, for_s):
                return False
            self.owner, self.depth = me, 1
            return True

        def release(self) -> None:
            if self.owner is None:
                raise RuntimeError("release unlocked lock")
            self.depth -= 1
            if self.depth == 0:
                self.owner = None
                s.point("released")

        def locked(self) -> bool:
            return self.owner is not None

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
            if kind is None or not issubclass(kind, Stop):
                self.release()
            else:
                self.owner, self.depth = None, 0

    class RLock(Lock):
        reentrant = True

    class Condition:
        def __init__(self, lock: Lock | None = None) -> None:
            self.lock = RLock() if lock is None else lock
            self.acquire, self.release = self.lock.acquire, self.lock.release
            self.waiting: list[list[bool]] = []

        def __enter__(self) -> bool:
            return self.lock.__enter__()

        def __exit__(self, *error: Any) -> None:
            self.lock.__exit__(*error)

        def wait(self, timeout: float | None = None) -> bool:
            if self.lock.owner != threading.get_ident():
                raise RuntimeError("cannot wait on un-acquired lock")
            rung, depth = [False], self.lock.depth
            self.waiting.append(rung)
            self.lock.owner, self.lock.depth = None, 0
            came = s.point("condition", lambda: rung[0], timeout)
            if not came:  # by identity: two waiters that were not notified are equal
                self.waiting = [each for each in self.waiting if each is not rung]
            s.point("lock after condition", lambda: self.lock.owner is None)
            self.lock.owner, self.lock.depth = threading.get_ident(), depth
            return came

        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            end_s = None if timeout is None else s.now_s + timeout
            while not (found := predicate()):
                if end_s is not None and s.now_s >= end_s:
                    return found
                self.wait(None if end_s is None else end_s - s.now_s)
            return found

        def notify(self, n: int = 1) -> None:
            if self.lock.owner != threading.get_ident():
                raise RuntimeError("cannot notify on un-acquired lock")
            for rung in self.waiting[:n]:
                rung[0] = True
            del self.waiting[:n]

        def notify_all(self) -> None:
            self.notify(len(self.waiting))

    class Event:
        def __init__(self) -> None:
            self.on = False

        def set(self) -> None:
            self.on = True
            s.point("set")

        def clear(self) -> None:
            self.on = False

        def is_set(self) -> bool:
            return self.on

        def wait(self, timeout: float | None = None) -> bool:
            return s.point("event", lambda: self.on, timeout)

    class Semaphore:
        def __init__(self, value: int = 1) -> None:
            self.value = value

        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
            if not s.point("semaphore", lambda: self.value > 0, timeout if blocking else 0.0):
                return False
            self.value -= 1
            return True

        def release(self, n: int = 1) -> None:
            self.value += n
            s.point("semaphore released")

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class Thread:
        def __init__(
            self,
            group: None = None,
            target: Callable[..., object] | None = None,
            name: str | None = None,
            args: Iterable[Any] = (),
            kwargs: dict[str, Any] | None = None,
            *,
            daemon: bool | None = None,
        ) -> None:
            self._target, self._args, self._kwargs = target, tuple(args), kwargs or {}
            self.name, self.daemon = name or "a thread", bool(daemon)
            self._task: Task | None = None

        def run(self) -> None:
            if self._target is not None:
                self._target(*self._args, **self._kwargs)

        def start(self) -> None:
            self._task = s.spawn(self.run, self.name, daemon=self.daemon)
            s.point("started")

        def is_alive(self) -> bool:
            return self._task is not None and not self._task.done

        def join(self, timeout: float | None = None) -> None:
            s.point(f"join {self.name}", lambda: not self.is_alive(), timeout)

    class Future:
        def __class_getitem__(cls, _: object) -> type:
            return cls

        def __init__(self) -> None:
            self._done, self._result = False, None
            self._error: BaseException | None = None
            self._callbacks: list[Callable[[Any], object]] = []

        def _settle(self, result: Any, error: BaseException | None) -> None:
            if self._done:
                raise concurrent.futures.InvalidStateError("resolved twice")
            self._done, self._result, self._error = True, result, error
            for callback in self._callbacks:
                callback(self)
            s.point("resolved")

        def set_result(self, result: Any) -> None:
            self._settle(result, None)

        def set_exception(self, error: BaseException | None) -> None:
            self._settle(None, error)

        def set_running_or_notify_cancel(self) -> bool:
            return not self._done

        def done(self) -> bool:
            return self._done

        def cancelled(self) -> bool:
            return isinstance(self._error, concurrent.futures.CancelledError)

        def cancel(self) -> bool:
            if not self._done:
                self._settle(None, concurrent.futures.CancelledError())
            return self.cancelled()

        def exception(self, timeout: float | None = None) -> BaseException | None:
            if not s.point("future", lambda: self._done, timeout):
                raise TimeoutError
            return self._error

        def result(self, timeout: float | None = None) -> Any:
            if (error := self.exception(timeout)) is not None:
                raise error
            return self._result

        def add_done_callback(self, callback: Callable[[Any], object]) -> None:
            if self._done:
                callback(self)
            else:
                self._callbacks.append(callback)

    class Queue:
        def __class_getitem__(cls, _: object) -> type:
            return cls

        def __init__(self, maxsize: int = 0) -> None:
            self._items, self._most = deque[Any](), maxsize or math.inf

        def qsize(self) -> int:
            return len(self._items)

        def empty(self) -> bool:
            return not self._items

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            if not s.point("put", lambda: len(self._items) < self._most, timeout if block else 0):
                raise queue.Full
            self._items.append(item)

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            if not s.point("get", lambda: self._items, timeout if block else 0.0):
                raise queue.Empty
            return self._items.popleft()

        def put_nowait(self, item: Any) -> None:
            self.put(item, block=False)

        def get_nowait(self) -> Any:
            return self.get(block=False)

    class Pool:
        """A thread pool with at most `max_workers` calls at once; further calls queue."""

        def __init__(
            self, max_workers: int | None = None, thread_name_prefix: str = "pool"
        ) -> None:
            self._most, self._prefix = max_workers or 8, thread_name_prefix
            self._todo, self._threads = deque[tuple[Any, Any]](), list[Thread]()
            self._idle, self._closed = 0, False

        def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future = Future()
            self._todo.append((future, lambda: call(*args, **kwargs)))
            if self._idle < len(self._todo) and len(self._threads) < self._most:
                name = f"{self._prefix}_{len(self._threads)}"
                self._threads.append(Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            return future

        def _work(self) -> None:
            while True:
                self._idle += 1
                s.point("pool", lambda: self._todo or self._closed)
                self._idle -= 1
                if not self._todo:
                    return
                future, call = self._todo.popleft()
                if future.done():
                    continue
                try:
                    result = call()
                except Exception as error:  # noqa: BLE001 - the future carries it
                    future.set_exception(error)
                else:
                    future.set_result(result)

        def map(self, call: Callable[..., Any], *iterables: Iterable[Any]) -> Iterator[Any]:
            futures = [self.submit(call, *each) for each in zip(*iterables, strict=False)]
            return (future.result() for future in futures)

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            self._closed = True
            while cancel_futures and self._todo:
                self._todo.popleft()[0].cancel()
            for thread in self._threads if wait else ():
                thread.join()

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None:
            self.shutdown()

    threads = SimpleNamespace(
        Lock=Lock,
        RLock=RLock,
        Condition=Condition,
        Event=Event,
        Semaphore=Semaphore,
        BoundedSemaphore=Semaphore,
        Thread=Thread,
        local=threading.local,
        get_ident=threading.get_ident,
        current_thread=lambda: SimpleNamespace(name=s.name, ident=threading.get_ident()),
        main_thread=threading.main_thread,
    )
    clocks = SimpleNamespace(monotonic=s.clock, perf_counter=s.clock, time=s.clock, sleep=s.sleep)
    queues = SimpleNamespace(Queue=Queue, SimpleQueue=Queue, Empty=queue.Empty, Full=queue.Full)
    return {
        id(threading): threads,
        id(time): clocks,
        id(queue): queues,
        id(threading.Lock): Lock,
        id(threading.RLock): RLock,
        id(threading.Condition): Condition,
        id(threading.Event): Event,
        id(threading.Thread): Thread,
        id(concurrent.futures.Future): Future,
        id(concurrent.futures.ThreadPoolExecutor): Pool,
    }
