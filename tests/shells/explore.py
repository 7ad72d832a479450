"""The search for interleavings that break a shell: schedules of fresh seeds, and their findings.

A shell is a module `tests/shells/NAME_shell.py` with a function `play(scheduler)`. It builds the
shell under test within `scheduler.controls(...)`, spawns its threads, calls `scheduler.run()`, and
asserts what holds at the end. A new module is found by its name; nothing else registers it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tests.shells.scheduler import Scheduler

HERE = Path(__file__).parent
ENDING = "_shell"
SEEDS = 10**6
"""First seeds are below this, so that they are short to type."""
TAIL = 30
"""The number of choices before a finding that are printed."""

Play = Callable[[Scheduler], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """A seed whose schedule broke the shell, the exception, and the last choices before it."""

    shell: str
    seed: int
    error: BaseException
    tail: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        tail = "\n".join(f"    {name}: {where}" for name, where in self.tail)
        return (
            f"{self.shell}, seed {self.seed}: {type(self.error).__name__}: {self.error}\n{tail}\n"
            f"replay: python -m tests.shells --only {self.shell} --first {self.seed} --count 1"
        )


@dataclass(frozen=True, slots=True)
class Explored:
    """The schedules of one exploration; the first `finding` ends it."""

    shell: str
    first: int
    schedules: int
    points: int
    took_s: float
    finding: Finding | None

    def __str__(self) -> str:
        each_ms = 1000 * self.took_s / max(1, self.schedules)
        points = self.points // max(1, self.schedules)
        return (
            f"{self.shell}: {self.schedules} schedules from seed {self.first} in "
            f"{self.took_s:.1f} s ({each_ms:.0f} ms and {points} points each), "
            f"{'a finding' if self.finding else 'no finding'}"
        )


def shells() -> dict[str, Play]:
    """Return the function `play` of each shell, by its name."""
    names = sorted(path.stem for path in HERE.glob(f"*{ENDING}.py"))
    return {name.removesuffix(ENDING): import_module(f"tests.shells.{name}").play for name in names}


def fresh_seed() -> int:
    """Return a first seed from the clock."""
    return time.time_ns() // 1000 % SEEDS


def explore(
    shell: str, play: Play, *, first: int, for_s: float, count: int | None = None
) -> Explored:
    """Play schedules from seed `first` on, for `for_s` s or `count` times; stop at a finding."""
    began_s, schedules, points = time.monotonic(), 0, 0
    finding: Finding | None = None
    while finding is None and (count is None or schedules < count):
        scheduler = Scheduler(first + schedules)
        try:
            play(scheduler)
        except Exception as error:  # noqa: BLE001 - it is what is looked for, and is printed
            finding = Finding(shell, scheduler.seed, error, tuple(scheduler.trace)[-TAIL:])
        schedules, points = schedules + 1, points + scheduler.points
        if count is None and time.monotonic() - began_s > for_s:
            break
    return Explored(shell, first, schedules, points, time.monotonic() - began_s, finding)
