"""The watchdog of syncer, shards and evaluator: a process without a sign of life is restarted.

Every few seconds each process is asked for a sign, without waiting for it. A process that owes a
sign for `hang_s` hangs: it is killed, and Ray restarts it, as after any other death. A process that
gives signs but makes no progress with an answer that the keeper waits for has `STUCK` times as
long. Only time in which the fleet itself was awake counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from cluster.fleet.evaluation import Pending
from coordinator.errors import RunFailed

log = logging.getLogger("archipelago.fleet")

STARTING_S = 120.0
"""The least timeout in seconds of a process without a sign so far: it imports and compiles."""
STUCK = 5
"""The timeout, in units of `hang_s`, of a process that repeats the same sign."""
OFTEN = 8
"""Looks without a sign after which a process hangs, and requests for signs within `hang_s`."""


@dataclass(slots=True)
class WatchedProcess:
    """The signs of one process."""

    begin: Callable[[], Pending]
    """A call that asks for a sign."""
    restart: Callable[[], None]
    """A call that kills it, so that Ray restarts it."""
    vital: bool = True
    """Whether the run cannot continue without it."""
    asked_s: float = 0.0
    """The time of the last request, in seconds in which the watchdog was awake."""
    pending: Pending | None = None
    """The sign that it owes; None if it owes none."""
    heard: bool = False
    """Whether it has given a sign since it was last seen to start."""
    sign: object = None
    """The last sign; a different one shows progress."""
    moved_s: float = 0.0
    """The time of its last progress, in the same seconds."""
    restarts: int = 0
    """Times it was restarted since the run last made progress."""


@dataclass(slots=True)
class Watchdog:
    """The watchdog of one run; only the keeper's thread calls it. Times are seconds awake."""

    hang_s: float
    """The timeout of a sign."""
    most: int
    """Restarts in a row, without progress of the run between, after which the run ends."""
    now_s: Callable[[], float] = time.monotonic
    """A steady clock."""
    _of: dict[str, WatchedProcess] = field(default_factory=dict)
    _awake_s: float = 0.0
    _looked_s: float | None = None
    _total: int = 0

    @property
    def restarts(self) -> int:
        """Processes that were restarted because they gave no sign, in all."""
        return self._total

    def add(
        self,
        name: str,
        begin: Callable[[], Pending],
        restart: Callable[[], None],
        *,
        vital: bool = True,
    ) -> None:
        """Watch this process from now on; `vital`: the run ends if it hangs again and again."""
        self._of[name] = WatchedProcess(begin, restart, vital, asked_s=self._awake_s - self.hang_s)

    def waits_for(self, name: str) -> None:
        """Note that the keeper begins to wait for an answer of this process."""
        if (it := self._of.get(name)) is not None:
            it.moved_s = self._awake_s

    def progressed(self) -> None:
        """Note that the run has made progress, which resets all counts of restarts."""
        for it in self._of.values():
            it.restarts = 0

    def look(self, waiting_for: str | None = None) -> None:
        """Check the signs of each process without waiting, and restart those that hang.

        Errors: `RunFailed` if one was restarted too often without progress between.
        """
        self._tick()
        for name, it in self._of.items():
            if (why := self._hangs(it, waited_for=name == waiting_for)) is not None:
                self._restart(name, it, why)

    def _tick(self) -> None:
        now_s = self.now_s()
        if self._looked_s is not None:
            self._awake_s += min(now_s - self._looked_s, self.hang_s / OFTEN)
        self._looked_s = now_s

    def _hangs(self, it: WatchedProcess, *, waited_for: bool) -> str | None:
        """Return why this process hangs; None if it does not, as far as is known."""
        now_s = self._awake_s
        if it.pending is None and now_s - it.asked_s >= self.hang_s / OFTEN:
            it.pending, it.asked_s = it.begin(), now_s
        if it.pending is not None:
            try:
                sign = it.pending(0.0)
            except RayTaskError as error:  # an error is a sign of life too
                self._note(it, str(error))
            except GetTimeoutError:
                patience_s = self.hang_s if it.heard else max(self.hang_s, STARTING_S)
                silent_s = now_s - it.asked_s
                return f"no sign for {silent_s:.0f} s" if silent_s >= patience_s else None
            except RayError:  # it has died, and is being restarted
                it.pending, it.heard, it.moved_s = None, False, now_s
            else:
                self._note(it, sign)
        stuck_s = now_s - it.moved_s
        if waited_for and it.heard and stuck_s >= STUCK * self.hang_s:
            return f"no answer for {stuck_s:.0f} s, though it gives signs"
        return None

    def _note(self, it: WatchedProcess, sign: object) -> None:
        it.pending, it.heard = None, True
        if sign != it.sign:
            it.sign, it.moved_s = sign, self._awake_s

    def _restart(self, name: str, it: WatchedProcess, why: str) -> None:
        it.restarts += 1
        if it.vital and it.restarts > self.most:
            raise RunFailed(
                f"{name} hangs ({why}) and was restarted {self.most} times, and the run made "
                "no progress in between: check its node and the depot, then resume with "
                "`archipelago run CONFIG.toml --resume --run-dir RUN`"
            )
        log.error("%s hangs: %s; it is restarted (%d)", name, why, it.restarts)
        it.pending, it.heard, it.sign = None, False, None
        it.asked_s = it.moved_s = self._awake_s
        self._total += 1
        it.restart()
