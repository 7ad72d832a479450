"""The trackers of a run, each on a thread of its own, which the run never waits for.

The keeper puts values into a bounded queue. If a tracker is slow or hangs, the queue fills, and
further values are dropped and counted. If it raises too often in a row, it is given up.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cluster.config.schema import Config
from cluster.config.tracker_names import TRACKERS
from cluster.failures import in_short
from cluster.fleet.tracked_values import EVALUATION, evaluated_regions, values_of
from cluster.fleet.tracker import TrackedRun, Tracker
from cluster.status import RunStatus
from cluster.storage.identity import identity_of
from cluster.storage.open_depot import depot_of

log = logging.getLogger("archipelago.fleet")

QUEUE = 1000
"""The most values that wait for a tracker."""
FAILURES = 10
"""Calls in a row that may raise, until a tracker is given up."""
END_S = 10.0
"""Seconds that the end of a run waits for all its trackers together."""
DROPPED_S = 600.0
"""Seconds after the last dropped value until a slow tracker is no alert any more."""
EVERY_S = 2.0
"""Seconds between two values of a tracker, at least; each evaluation is logged besides."""


Evaluated = tuple[int, float]
"""An evaluation: the syncer step of the model, and its held-out loss."""


class LoggedValues(NamedTuple):
    """Values for a tracker, with their place on its axes."""

    values: Mapping[str, float]
    t: int
    tokens: int
    unix_s: float


class TrackerThread:
    """One tracker and its thread."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Tracker],
        run: Callable[[], TrackedRun],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread. `make` and `run` are called on it, and may block or raise."""
        self._name, self._make, self._run, self._now_s = name, make, run, now_s
        self._queue: queue.Queue[LoggedValues | Mapping[str, Any]] = queue.Queue(QUEUE)
        self._ended = threading.Event()
        self._failures = 0  # in a row
        self._given_up = False
        self._dropped_s = -math.inf  # the time of the last dropped value
        self.dropped = 0
        """Values that the tracker did not get, in all."""
        self.error: str | None = None
        """The last exception of the tracker, in one line; None if its last call succeeded."""
        threading.Thread(target=self._follow, name=f"tracker {name}", daemon=True).start()

    @property
    def trouble(self) -> str | None:
        """The reason why the tracker misses values; None if it missed none lately."""
        if self.error is not None:
            state = "is given up" if self._given_up else "failed"
            return f"tracker {self._name} {state}: {self.error}"
        if self._now_s() - self._dropped_s < DROPPED_S:
            return f"tracker {self._name} is too slow or hangs: {self.dropped} values are dropped"
        return None

    @property
    def missing(self) -> str | None:
        """The number of values that the tracker did not get, in words; None if it got all."""
        if not self.dropped:
            return None
        return f"tracker {self._name} did not get {self.dropped} values of this run"

    def put(self, item: LoggedValues | Mapping[str, Any]) -> None:
        """Hand values or the summary over, or count them as dropped if the queue is full."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self._drop()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the tracker has ended; return whether it has."""
        return self._ended.wait(timeout_s)

    def _follow(self) -> None:
        try:
            tracker: list[Tracker] = []
            self._try(lambda: tracker.append(self._make()))
            if tracker:
                self._try(lambda: tracker[0].start(self._run()))
            if self.error is not None:
                self._given_up = True
            while True:
                item = self._queue.get()
                if isinstance(item, LoggedValues):
                    if self._given_up:
                        self._drop()
                    else:
                        self._try(lambda values=item: tracker[0].log(*values))
                    continue
                if not self._given_up:
                    self._try(lambda summary=item: tracker[0].end(summary))
                return
        finally:
            self._ended.set()

    def _drop(self) -> None:
        self.dropped += 1
        self._dropped_s = self._now_s()

    def _try(self, call: Callable[[], object]) -> None:
        """Call the tracker; log the first of a series of exceptions, and count all."""
        try:
            call()
        except Exception as error:
            if self.error is None:
                log.error("tracker %s failed", self._name, exc_info=error)
            self.error = in_short(f"{type(error).__name__}: {error}")
            self._failures += 1
            self._given_up = self._failures >= FAILURES
        else:
            self._failures, self.error = 0, None


class Trackers:
    """All trackers of one run; the keeper's thread calls it."""

    def __init__(
        self,
        threads: Sequence[TrackerThread] = (),
        evaluated: Evaluated | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the trackers. `evaluated`: the last evaluation that an earlier fleet logged."""
        self._threads, self._evaluated, self._now_s = threads, evaluated, now_s
        self._by_region: dict[str, Evaluated] = {}
        self._logged_s = -EVERY_S
        self._ends = False

    @classmethod
    def start(
        cls, config: Config, run_dir: Path, *, resumed: bool, evaluated: Evaluated | None = None
    ) -> Trackers:
        """Start the trackers of a configuration.

        `resumed`: an earlier fleet had them. `evaluated`: the last evaluation that it has logged.
        """

        def run() -> TrackedRun:
            run_id = identity_of(depot_of(config, run_dir)) or run_dir.name
            plain = config.model_dump(mode="json")
            return TrackedRun(run_dir.name, run_id, run_dir.absolute(), plain, resumed)

        return cls(
            [TrackerThread(name, partial(made, name), run) for name in config.monitor.track],
            evaluated,
        )

    @property
    def trouble(self) -> str | None:
        """The reasons why trackers miss values; None if none does."""
        found = [each.trouble for each in self._threads if each.trouble is not None]
        return "; ".join(found) or None

    def log(self, status: RunStatus, unix_s: float) -> None:
        """Hand a status to all trackers: new evaluations, and the rest every `EVERY_S` seconds.

        If the run went back to an earlier state, the evaluations up to that state were logged.
        """
        if not self._threads:
            return
        tokens = status["tokens_trained"]
        if self._evaluated is not None and status["t"] < self._evaluated[0]:
            self._evaluated = status["heldout"][-1] if status["heldout"] else None
        for t, loss in status["heldout"]:
            known = self._evaluated
            if known is None or t > known[0] or (t == known[0] and loss != known[1]):
                self._evaluated = t, loss
                self._put(LoggedValues({EVALUATION: loss}, t, tokens, unix_s))
        for region, found in evaluated_regions(status).items():
            if self._by_region.get(region) != found:
                self._by_region[region] = t, loss = found
                self._put(LoggedValues({f"{EVALUATION}/{region}": loss}, t, tokens, unix_s))
        if self._now_s() - self._logged_s >= EVERY_S or status["phase"] == "finished":
            self._logged_s = self._now_s()
            self._put(LoggedValues(values_of(status), status["t"], tokens, unix_s))

    def end(self, summary: Mapping[str, Any]) -> None:
        """Hand the summary to all trackers."""
        if not self._ends:
            self._ends = True
            self._put({**summary})

    def close(self, within_s: float = END_S) -> None:
        """End all trackers, and wait for them for `within_s` seconds at most."""
        self.end({})
        until_s = time.monotonic() + within_s
        for thread in self._threads:
            if not thread.wait(max(0.0, until_s - time.monotonic())):
                log.warning("a tracker does not end, and is left behind: %s", thread.trouble)
            if (missing := thread.missing) is not None:
                log.warning("%s", missing)

    def _put(self, item: LoggedValues | Mapping[str, Any]) -> None:
        for thread in self._threads:
            thread.put(item)


def made(name: str) -> Tracker:
    """Return a new tracker by its name in `monitor.track`.

    Errors: `UserMistake` if it is the user's own and cannot be imported; any exception of it.
    """
    match name:
        case "tensorboard":
            from cluster.fleet.tracker_tensorboard import TensorBoardTracker

            return TensorBoardTracker()
        case "wandb":
            from cluster.fleet.tracker_wandb import WandbTracker

            return WandbTracker()
        case _:
            from islands.user_code import attribute_of

            return attribute_of("monitor.track", name)()


def check_trackers(config: Config) -> list[str]:
    """Return the problems of `monitor.track` on this machine: modules that are missing."""
    from importlib.util import find_spec

    from coordinator.errors import UserMistake
    from islands.package_extras import install_command
    from islands.user_code import attribute_of

    problems: list[str] = []
    for name in config.monitor.track:
        if (module := TRACKERS.get(name)) is not None:
            if find_spec(module) is None:
                problems.append(
                    f'monitor.track: "{name}" needs the package {module}, which is not installed: '
                    f"{install_command(name)}"
                )
            continue
        try:
            found = attribute_of("monitor.track", name)
        except UserMistake as error:
            problems.append(str(error))
        else:
            if not callable(found):
                problems.append(f'monitor.track: "{name}" is not a class or function')
    return problems
