"""How a process breaks itself on purpose: what each kind of fault does where it happens.

Which kinds there are, and who can have them: `config.fault_kinds.FAULTS`.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time

import ray

FULL_BYTES = 4096


class Breakable:
    """What every actor of a run can be told to do to its own process."""

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def halt(self, for_s: float) -> None:
        wake = f"sleep {for_s:g}; kill -CONT {os.getpid()}"
        waker = subprocess.Popen(["sh", "-c", wake], start_new_session=True)
        threading.Thread(target=waker.wait, daemon=True).start()  # else it stays as a zombie
        os.kill(os.getpid(), signal.SIGSTOP)

    def fill(self, for_s: float) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, before[1]))
        restore = (resource.RLIMIT_FSIZE, before)
        threading.Timer(for_s, resource.setrlimit, restore).start()


class BreakableIsland(Breakable):
    """The faults that an island's actor can inject into its node."""

    @ray.method(concurrency_group="breaking")
    def node(self) -> str:
        """Return Ray's id of the node on which it is."""
        return ray.get_runtime_context().get_node_id()

    @ray.method(concurrency_group="breaking")
    def kill_node(self) -> None:
        """Kill the raylet, which has started this process, and with it everything on the node."""
        os.kill(os.getppid(), signal.SIGKILL)


class Cable:
    """An island's connection, which can be cut for a while: calls hang, as on a dead link."""

    def __init__(self) -> None:
        self._healed_s = 0.0

    def cut(self, for_s: float) -> None:
        self._healed_s = time.monotonic() + for_s

    def passes(self, within_s: float = float("inf")) -> bool:
        """Wait until it is whole; False if that takes too long."""
        left_s = self._healed_s - time.monotonic()
        time.sleep(max(0.0, min(left_s, within_s)))
        return left_s <= within_s
