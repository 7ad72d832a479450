"""The actor of an island that sums gradients: it holds the process, and answers calls."""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from typing import TYPE_CHECKING, NoReturn

import ray

from cluster.actors.directory import setup_logging
from cluster.actors.fault_injection import BreakableIsland
from cluster.actors.ring.ray_link import RingRayLink
from cluster.allreduce.saved_state import RingState
from cluster.config.schema import Config
from cluster.failures import Reason, raised
from cluster.names import Seat
from cluster.tasks import watch_process
from cluster.workers.environment import drop_stale_addresses
from coordinator.errors import Rejected
from coordinator.protocol import Life
from islands.activity_clock import ActivityClock

if TYPE_CHECKING:
    from cluster.allreduce.member import RingMember

log = logging.getLogger("archipelago.island")
PEEK_S = 20.0
"""Timeout, in seconds, of a request for the parameters at the next step boundary."""


class RingIslandActor(BreakableIsland):
    """One island that sums gradients with the others."""

    def __init__(self, config: str, group: str, seat: Seat, namespace: str) -> None:
        """Start the island's thread; this cannot fail, since Ray would never restart the actor."""
        setup_logging()
        drop_stale_addresses()
        watch_process(self._break_down)
        self._config = Config.model_validate_json(config, strict=False)
        self._link = RingRayLink(self._config, namespace, seat)
        self._member: RingMember | None = None
        self._over = threading.Event()
        threading.Thread(target=self._live, name="train", daemon=True).start()

    def _live(self) -> None:
        """Train in rings until the run is over, the island is refused, or it breaks."""
        try:
            wait_s = self._link.starting()
            clock = ActivityClock(time.perf_counter)  # the fleet counts this start from now, too
            time.sleep(wait_s)
            if (island := self._link.role(warm=False)) is None:
                return
            from cluster.allreduce.member import RingMember

            self._member = RingMember(self._config, island, self._link, clock)
            self._member.run()
        except Rejected as error:
            log.warning("%s", error)
        except BaseException as error:  # noqa: BLE001 - which ends the process
            self._break_down(error)
        finally:
            self._over.set()

    def _break_down(self, error: BaseException) -> NoReturn:
        """Report an exception of one of the threads, and end this process; Ray restarts it."""
        failure = raised(Reason.TRAIN, error)
        log.error("the island broke, %s; its process is restarted", failure.why, exc_info=error)
        try:
            self._link.broke(failure, "".join(traceback.format_exception(error)))
        finally:
            logging.shutdown()
            os._exit(1)

    @ray.method(concurrency_group="watching")
    def watch(self, life: Life) -> str:
        """Return when this life is over; if the process dies, Ray raises an error."""
        self._over.wait()
        return f"{life} is over"

    @ray.method(concurrency_group="control")
    def pause(self, ring: int) -> None:
        """Have the island leave this ring after the step under way."""
        if self._member is not None:
            self._member.pause(ring)

    @ray.method(concurrency_group="asking")
    def peek(self) -> RingState | None:
        """Return the parameters at the next step boundary, without moments; None after `PEEK_S`."""
        return None if self._member is None else self._member.peek(PEEK_S)

    @ray.method(concurrency_group="asking")
    def state_of(self, life: Life) -> RingState | None:
        """Return the whole training state, if the island is in no ring; otherwise None."""
        return None if self._member is None else self._member.state_of()

    @ray.method(concurrency_group="control")
    def leave(self) -> None:
        """Do nothing: the run is over, and the process ends with its actor."""

    @ray.method(concurrency_group="control")
    def spoil(self, factor: float) -> None:
        """Multiply the island's gradients from now on by `factor` (for fault plans)."""
        if self._member is not None:
            self._member.spoil = factor

    @ray.method(concurrency_group="breaking")
    def slow(self, factor: float, for_s: float) -> None:
        """Lengthen each step by `factor` for `for_s` seconds (for fault plans)."""
        if self._member is not None:
            self._member.drag = factor
            time.sleep(for_s)
            self._member.drag = 1.0
