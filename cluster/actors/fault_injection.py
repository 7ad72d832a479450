"""Faults that a process injects into itself: the action of each kind where it happens.

`config.fault_kinds.FAULTS` lists the kinds, and which processes each applies to.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import ray

FULL_BYTES = 4096
"""The largest size to which any file may grow while the fault `fill` lasts."""


class FullDisk:
    """The file-size limit of this process, which is low while at least one fault lasts."""

    def __init__(self) -> None:
        self._lock, self._faults = threading.Lock(), 0
        self._limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def begin(self) -> None:
        """Lower the limit to `FULL_BYTES`, unless another fault has done so."""
        with self._lock:
            self._faults += 1
            if self._faults == 1:
                self._limit = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, self._limit[1]))

    def end(self) -> None:
        """Restore the limit after the last fault."""
        with self._lock:
            self._faults -= 1
            if self._faults == 0:
                resource.setrlimit(resource.RLIMIT_FSIZE, self._limit)


_FULL_DISK = FullDisk()


class Breakable:
    """The faults that every actor of a run can inject into its own process."""

    def kill(self) -> None:
        """Kill this process with SIGKILL."""
        os.kill(os.getpid(), signal.SIGKILL)

    def halt(self, for_s: float) -> None:
        """Stop this process with SIGSTOP; a helper process resumes it after `for_s` seconds."""
        wake = f"sleep {for_s:g}; kill -CONT {os.getpid()}"
        waker = subprocess.Popen(["sh", "-c", wake], start_new_session=True)
        threading.Thread(target=waker.wait, daemon=True).start()  # else it stays a zombie
        os.kill(os.getpid(), signal.SIGSTOP)

    def fill(self, for_s: float) -> None:
        """Have writes beyond `FULL_BYTES` of a file fail for `for_s` seconds, as on a full disk."""
        _FULL_DISK.begin()
        threading.Timer(for_s, _FULL_DISK.end).start()


class BreakableIsland(Breakable):
    """The faults that an island's actor can inject into its node."""

    @ray.method(concurrency_group="breaking")
    def node(self) -> str:
        """Return Ray's id of the node on which this process runs."""
        return ray.get_runtime_context().get_node_id()

    @ray.method(concurrency_group="breaking")
    def kill_node(self) -> None:
        """Kill the raylet, the parent of this process, and with it everything on the node."""
        os.kill(os.getppid(), signal.SIGKILL)


class Cable:
    """An island's connection, which can be cut for a while: calls then hang, as on a dead link."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._monotonic, self._sleep = monotonic, sleep
        self._healed_s = 0.0

    def cut(self, for_s: float) -> None:
        """Cut the connection for `for_s` seconds."""
        self._healed_s = max(self._healed_s, self._monotonic() + for_s)

    def passes(self, within_s: float = float("inf")) -> bool:
        """Wait until the connection is whole; return False if that takes longer than `within_s`."""
        given_up_s = self._monotonic() + within_s
        while (now_s := self._monotonic()) < self._healed_s:  # which a second cut may postpone
            if now_s >= given_up_s:
                return False
            self._sleep(min(self._healed_s, given_up_s) - now_s)
        return True
