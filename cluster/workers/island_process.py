"""An island's process: it runs a learner on its own thread, and ends when the learner breaks.

The slow work (importing, reading, compiling) comes before the question which island this is. A
spare is a process that receives the answer "none yet" and keeps asking.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn, Protocol

from cluster.config.schema import Config, IslandGroup
from cluster.failures import Failure, Reason
from cluster.workers.border import Border, border_of
from coordinator.errors import Rejected, Relieved
from coordinator.parts import Split
from coordinator.protocol import Fragment, Island
from islands.activity_clock import ActivityClock
from islands.time_budget import Activity

if TYPE_CHECKING:  # JAX is imported on the learner's thread, where a failure can be reported
    from islands.hosts.lead import Lead
    from islands.hosts.orders import Order
    from islands.learner import Learner
    from islands.link import Link

log = logging.getLogger("archipelago.island")

WATCHFUL_S = 0.2
"""Seconds between two times that a spare asks whether it is needed."""


class Superior(Protocol):
    """The calls of an island's process to the fleet; each blocks until it is answered."""

    def starting(self) -> float:
        """Return how many seconds to wait before the start, as a back-off.

        A process in a crash loop must not saturate its node.
        """
        ...

    def role(self, *, warm: bool) -> Island | None:
        """Return the island that this process is; None for a spare.

        `warm`: the process could become an island at once.
        """
        ...

    def broke(self, failure: Failure | None, words: str) -> None:
        """Report that this process breaks, with its traceback in `words`.

        `failure`: the failure for the syncer; None if the syncer already has it.
        """
        ...


class Gang(Protocol):
    """The other hosts of an island with several hosts."""

    @property
    def lead(self) -> Lead[Order]:
        """The sender of orders to the other hosts."""
        ...

    def narrowed(self, link: Link, ranges: Mapping[Fragment, slice], split: Split) -> Link:
        """Restrict a link to the ranges of the fragments that this host holds; return the link.

        `split`: how the island is split over its hosts.
        """
        ...


class IslandProcess:
    """The process inside an island's actor; if its learner breaks, it ends and Ray restarts it."""

    def __init__(
        self,
        config: Config,
        group: IslandGroup,
        superior: Callable[[], Superior],
        link: Callable[[], Link],
        gather: Callable[[], Gang] | None = None,
        border: Border | None = None,
        exits: Callable[[], NoReturn] | None = None,
    ) -> None:
        """Start the learner's thread.

        `gather`: brings the other hosts together, if the island has any. `border`: that of its
        region; None: of the group's region, with the group's file. `exits`: ends the process; None:
        at once, as if it had been killed.

        This cannot fail: an actor whose constructor raises is never restarted.
        """
        self._gather = gather
        self._config, self._group = config, group
        self._border, self._exits = border or border_of(config, group), exits or _exit_now
        self._superior, self._link = superior, link
        self.learner: Learner | None = None
        self._breaking = threading.Lock()
        threading.Thread(target=self._live, name="train", daemon=True).start()

    def _live(self) -> None:
        """Run a learner until the run is over, the island is refused, or the learner breaks."""
        try:
            wait_s = self._superior().starting()
            clock = ActivityClock(time.perf_counter)  # the fleet counts this start from now, too
            time.sleep(wait_s)
            gang = None if self._gather is None else self._gather()
            from cluster.workers.assembly import assemble, compiled, ranges_of, rehearse
            from islands.hosts.orders import Rehearse

            parts = compiled(self._config, self._group, lambda: clock.switch(Activity.COMPILING))
            self._border.knows(parts.layout.fingerprint)
            clock.switch(Activity.STARTING)
            lead = None if gang is None else gang.lead

            def warm() -> None:
                if lead is not None:
                    lead.tell(Rehearse())
                rehearse(parts, self._group.batch_size)

            while True:
                island, link = self._wait(warm, clock), self._link()
                if gang is not None:
                    link = gang.narrowed(link, ranges_of(parts), parts.inner.devices.parting)
                self.learner = assemble(self._config, island, parts, link, lead, clock)
                try:
                    self.learner.run()
                    if parts.loop is not None:
                        parts.loop.end(self.learner.params)
                    return
                except Relieved as error:
                    log.warning("%s", error)
        except Rejected as error:
            log.warning("%s", error)
        except BaseException as error:  # noqa: BLE001 - which ends the process
            self.break_down(Reason.TRAIN, error)

    def end(self, why: str) -> NoReturn:
        """End this process as if it had been killed; Ray restarts it."""
        log.error("an island of %s ends: %s", self._group.group, why)
        self._exits()

    def break_down(self, reason: Reason, error: BaseException, *, known: bool = False) -> NoReturn:
        """Report an exception of any thread, and end this process; Ray restarts it.

        Several threads may notice at once that a device has failed. Each one logs its exception.
        Only the first one reports; the others block until the process ends. `known`: the syncer
        asked for this, and needs no report.
        """
        is_first = self._breaking.acquire(blocking=False)
        try:
            failure, words = self._border.failure(reason, error)
            log.error(
                "a learner of %s broke, %s; its process is restarted",
                self._group.group,
                failure.why,
                exc_info=error,
            )
            if is_first:
                self._superior().broke(None if known else failure, words)
        finally:
            if not is_first:
                threading.Event().wait()
            self._exits()

    def _wait(self, rehearse: Callable[[], None], clock: ActivityClock) -> Island:
        """Return which island this is; a spare waits, warm, until it is one.

        The time budget of the island begins when the spare takes it over.
        """
        if (island := self._superior().role(warm=False)) is not None:
            return island
        rehearse()
        log.info("a spare of %s is warm", self._group.group)
        while (island := self._superior().role(warm=True)) is None:
            time.sleep(WATCHFUL_S)
        clock.restart()
        return island


def _exit_now() -> NoReturn:
    """End this process without any clean-up but that of the logs."""
    logging.shutdown()
    os._exit(1)
