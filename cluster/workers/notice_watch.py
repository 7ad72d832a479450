"""The notices that reach a host of an island: SIGTERM, and its cloud's metadata server.

Each is passed on to the fleet once, which then drains the island. A process that was sent SIGTERM
ends itself if nothing else has ended it within `faults.policy.drain_s`, or at the second SIGTERM.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable

from cluster.config.schema import FaultsConfig
from cluster.workers.cloud_notices import MachineNotice, NoticeCloud, ask

log = logging.getLogger("archipelago.island")
SIGTERM_WHY = "preempted: SIGTERM of its process"
SECOND_WHY = "it was sent SIGTERM twice"


class NoticeWatch:
    """The watch over the notices of one process."""

    def __init__(
        self,
        faults: FaultsConfig,
        report: Callable[[str, float, bool], None],
        end: Callable[[str], object],
        poll: Callable[[NoticeCloud, str | None, float], MachineNotice | None] = ask,
    ) -> None:
        """Create the watch; `start` begins it.

        `report`: passes a notice to the fleet: the reason, the seconds that are left, and whether
        the whole node goes away. `end`: ends this process. `poll`: asks a metadata server.
        """
        self._drain_s, self._preemption = faults.policy.drain_s, faults.preemption
        self._report, self._end, self._poll = report, end, poll
        self._signals = queue.SimpleQueue[None]()  # a signal handler may put into it at any time

    def start(self) -> None:
        """Watch from now on; this cannot fail.

        The handler replaces Ray's, which would end the process at once. It can be set on the main
        thread only, on which Ray calls constructors.
        """
        try:
            signal.signal(signal.SIGTERM, lambda number, frame: self.signalled())
        except ValueError:
            log.warning("SIGTERM ends this process at once: it was not built on the main thread")
        else:
            threading.Thread(target=self.await_signals, name="SIGTERM", daemon=True).start()
        if self._preemption.cloud is not None:
            threading.Thread(target=self.await_cloud, name="notices", daemon=True).start()

    def signalled(self) -> None:
        """Note one SIGTERM."""
        self._signals.put(None)

    def await_signals(self) -> None:
        """Report the first SIGTERM; end the process at the second, or after `drain_s`."""
        self._signals.get()
        log.warning("%s: it hands in its work and leaves", SIGTERM_WHY)
        ended_s = time.monotonic() + self._drain_s
        reporting = threading.Thread(
            target=self._report, args=(SIGTERM_WHY, self._drain_s, False), daemon=True
        )
        reporting.start()  # the fleet may be away for longer than this process may stay
        try:
            self._signals.get(timeout=max(0.0, ended_s - time.monotonic()))
        except queue.Empty:
            self._end(f"it was sent SIGTERM {self._drain_s:g} s ago, and nothing has ended it")
        else:
            self._end(SECOND_WHY)

    def await_cloud(self) -> None:
        """Ask the metadata server until it announces the end of this machine; report that."""
        cloud, failing = NoticeCloud(self._preemption.cloud or ""), ""
        while True:
            try:
                notice = self._poll(cloud, self._preemption.address, time.time())
            except (OSError, ValueError, KeyError, TypeError) as error:
                if str(error) != failing:
                    failing = str(error)
                    log.warning("no notices of %s: its metadata server: %r", cloud, error)
                notice = None
            if notice is not None:
                log.warning("%s; %.0f s are left", notice.why, notice.within_s)
                self._report(notice.why, notice.within_s, True)
                return
            time.sleep(self._preemption.every_s)
