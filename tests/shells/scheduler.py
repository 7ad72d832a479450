"""A deterministic scheduler for code with threads: virtual time, and seeded choices.

Each controlled thread is a real thread, but only one of them runs at a time. At every acquired or
released lock, condition, event, future, queue, sleep, thread start and `point`, the seed chooses
the thread that runs next. The same seed gives the same interleaving. Time is virtual: it grows by
a little at each point, and jumps to the next timeout when all threads wait.

Use it like this:

    scheduler = Scheduler(seed)
    with scheduler.controls(mailbox, learner):   # replaces their `threading`, `time`, `Future`, ...
        shell = Shell(now_s=scheduler.clock)
        scheduler.spawn(shell.run, "train")
        scheduler.spawn(asks, "asks")
        scheduler.run()

    def asks() -> None:
        scheduler.sleep(scheduler.rng.random())       # chance comes from the scheduler, too
        with scheduler.within(5.0, "the hand-in"):    # virtual seconds: finds a lost wake-up
            shell.hand_in(...)

A fake (a network, a depot) calls `point("report")` where a real call would take time, or
`nap("report", 0.1)` for up to that many virtual seconds. `run` raises the first exception of any
thread, `Deadlock` if no thread can ever run again, and `Late` if a bound is exceeded.

`controls` replaces a name in a module if it is the standard library's: `threading`, `time`,
`queue`, `Future`, `ThreadPoolExecutor` (`tests/shells/stand_ins.py` has what replaces them). A
default that a class evaluates once, such as `field(default_factory=threading.Lock)`, is not
replaced: write a function there that returns one.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType, ModuleType

from tests.shells import stand_ins
from tests.shells.stand_ins import Stop, stand_ins_of

STICKY = (0.0, 0.5, 0.9)
"""Chances that a thread runs on at a point; the seed chooses one for a schedule."""
SLOW = 0.05
"""The weight, against 1, of a thread that the seed makes slow."""
TICK_S = 1e-4
"""Virtual seconds that one point takes."""
REAL_S = 60.0
"""Real seconds that a schedule may take: after that, a thread blocks outside the scheduler."""


OURS = (__file__, stand_ins.__file__, threading.__file__, contextlib.__file__)
"""Files that are not code under test."""


class Deadlock(Exception):
    """A state in which all threads wait, none of them with a timeout."""


class Late(Exception):
    """An answer that did not come within its bound of virtual time."""


class Stuck(Exception):
    """A controlled thread that blocks on something that the scheduler does not control."""


class Task:
    """One controlled thread."""

    def __init__(self, name: str, *, daemon: bool) -> None:
        self.name, self.daemon, self.done = name, daemon, False
        self.weight = 1.0
        self.turn = threading.Semaphore(0)
        self.where = "begins"
        self.until: Callable[[], object] | None = None
        self.deadline_s = math.inf
        self.bounds: list[tuple[float, str]] = []  # the end of each bound, and its answer
        self.thread: threading.Thread


class Scheduler:
    """The threads of one schedule, the virtual clock, and the choices of one seed.

    `trace` lists (thread, where it was before) for each choice; `points` is their number.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.now_s = 0.0
        self.trace: deque[tuple[str, str]] = deque(maxlen=200)
        self.points = 0
        self._tasks: list[Task] = []
        self._local = threading.local()
        self._over, self._errors = threading.Event(), list[BaseException]()
        self._sticky = self.rng.choice(STICKY)

    # --- for tests and fakes ----------------------------------------------------------------------

    def clock(self) -> float:
        """Return the virtual time in seconds: a `now_s` for the shell under test."""
        return self.now_s

    def spawn(self, body: Callable[[], object], name: str, *, daemon: bool = False) -> Task:
        """Add a thread. A daemon does not keep the schedule from ending."""
        task = Task(name, daemon=daemon)
        task.weight = self.rng.choice((1.0, 1.0, SLOW))
        task.thread = threading.Thread(target=self._live, args=(task, body), daemon=True)
        self._tasks.append(task)
        task.thread.start()
        return task

    def run(self) -> None:
        """Run until all threads but the daemons are done.

        Errors: the first exception that a thread raised; `Deadlock`, `Late`, `Stuck`.
        """
        self._choose(None)
        if not self._over.wait(REAL_S):
            stuck = [task for task in self._tasks if not task.done]
            self._errors.append(Stuck(f"{REAL_S:g} s of real time; {self._stands(stuck)}"))
            self._finish()
        for task in self._tasks:
            task.thread.join(REAL_S)
        if self._errors:
            raise self._errors[0]

    def point(
        self,
        where: str,
        until: Callable[[], object] | None = None,
        for_s: float | None = None,
    ) -> bool:
        """Let other threads run. Return once `until` holds, or after `for_s` with False."""
        me: Task | None = getattr(self._local, "task", None)
        if me is None:  # before or after the schedule: the test's own thread, alone
            if until is not None and not until():
                raise Stuck(f"{where}: a thread that is not controlled would wait for ever")
            return True
        if self._over.is_set():
            raise Stop
        me.where, me.until = where, until
        me.deadline_s = math.inf if for_s is None else self.now_s + max(0.0, for_s)
        if self._choose(me) is not me:
            me.turn.acquire()
        me.until, me.deadline_s = None, math.inf
        if self._over.is_set():
            raise Stop
        return until is None or bool(until())

    def sleep(self, for_s: float) -> None:
        """Wait for `for_s` virtual seconds."""
        self.point("sleeps", _never, for_s)

    def nap(self, where: str, most_s: float) -> None:
        """Wait for a time that the seed chooses, at most `most_s`."""
        self.point(where, _never, most_s * self.rng.random())

    @contextmanager
    def within(self, bound_s: float, what: str) -> Generator[None]:
        """Fail the schedule with `Late` if the block takes longer than this, in virtual time."""
        bounds = self._local.task.bounds
        bounds.append((self.now_s + bound_s, f"{what} within {bound_s:g} s"))
        try:
            yield
        finally:
            bounds.pop()

    @contextmanager
    def controls(self, *modules: ModuleType) -> Generator[None]:
        """Replace what these modules use of the standard library's threads and clocks."""
        replaced = list[tuple[ModuleType, str, object]]()
        found_by_id = stand_ins_of(self)
        try:
            for module in modules:
                for name, value in list(vars(module).items()):
                    if (found := found_by_id.get(id(value))) is not None:
                        replaced.append((module, name, value))
                        setattr(module, name, found)
            yield
        finally:
            for module, name, value in replaced:
                setattr(module, name, value)

    @property
    def name(self) -> str:
        """The name of the calling thread."""
        task: Task | None = getattr(self._local, "task", None)
        return "the test" if task is None else task.name

    # --- choices ----------------------------------------------------------------------------------

    def _live(self, task: Task, body: Callable[[], object]) -> None:
        self._local.task = task
        task.turn.acquire()
        try:
            if not self._over.is_set():
                body()
        except Stop:
            pass
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            if not self._over.is_set():
                self._errors.append(error)
                self._finish()
        task.done = True
        if not self._over.is_set():
            self._choose(task)

    def _choose(self, me: Task | None) -> Task | None:
        """Choose the thread that runs next, and wake it unless it is the caller.

        Returns `None` at the end of the schedule.
        """
        self.now_s += TICK_S
        alive = [task for task in self._tasks if not task.done]
        if all(task.daemon for task in alive):
            return self._finish()
        able = [task for task in alive if self._able(task)]
        if not able:
            self.now_s = min(task.deadline_s for task in alive)
            if math.isinf(self.now_s):
                self._errors.append(Deadlock(self._stands(alive)))
                return self._finish()
            able = [task for task in alive if self._able(task)]
        for task in alive:
            for end_s, what in task.bounds:
                if self.now_s > end_s:
                    self._errors.append(Late(f"{task.name}: no {what}; {self._stands(alive)}"))
                    return self._finish()
        if me in able and self._sticky and self.rng.random() < self._sticky:
            chosen = me
        else:
            chosen = self.rng.choices(able, [task.weight for task in able])[0]
        self.points += 1
        self.trace.append((chosen.name, chosen.where))
        if chosen is not me:
            chosen.turn.release()
        return chosen

    def _able(self, task: Task) -> bool:
        return task.until is None or task.deadline_s <= self.now_s or bool(task.until())

    def _finish(self) -> None:
        self._over.set()
        for task in self._tasks:
            task.turn.release()

    def _stands(self, tasks: Iterable[Task]) -> str:
        """Return where each of these threads waits, and in which line of the code under test."""
        frames = _frames()
        lines = list[str]()
        for task in tasks:
            stack = traceback.extract_stack(frames.get(task.thread.ident or 0))
            ours = [f for f in stack if f.filename not in OURS]
            at = f" ({ours[-1].filename}:{ours[-1].lineno} {ours[-1].name})" if ours else ""
            lines.append(f"{task.name} waits: {task.where}{at}")
        return "; ".join(lines)


def _frames() -> dict[int, FrameType]:
    """Return the frame of each thread, by its identifier.

    In Python 3.11 a garbage collection in the middle of this can hang the process (gh-106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


def _never() -> bool:
    return False
