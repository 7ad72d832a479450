"""The meeting point of a ring's processes: JAX's coordination service, in a process of its own.

JAX ends every process whose coordination service is gone, so the service must not run in a member
of the ring, which may be killed. Process 0 of `jax.distributed` hosts it. Here process 0 is a
process that only hosts: it takes no part in the sums, and exits when its standard input is closed.

`python -m cluster.allreduce.rendezvous` imports JAX, then reads one line, "HOST PORT COUNT".
"""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cluster.hosts.held_port import HeldPort

log = logging.getLogger("archipelago.ring")
COMMAND = (sys.executable, "-m", "cluster.allreduce.rendezvous")
SOCKET = re.compile(r"socket:\[(\d+)\]")
JOIN_S = 60
"""Seconds that the members of a ring wait for each other when it forms."""
HEARTBEAT_S = 100
"""Seconds without a heartbeat after which a member counts as dead; the default of JAX."""


class Rendezvous:
    """A meeting point: a process that is prepared first, and then opened for one ring."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        """Start its process.

        Errors: `OSError`.
        """
        self._port: HeldPort | None = None  # reserved for the service, once it is open
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """True if its process runs."""
        return self._process.poll() is None

    def open(self, host: str, members: int) -> str:
        """Open it for this number of members, and return its address.

        Errors: `OSError` if its process has died.
        """
        self._port = HeldPort()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{host} {self._port.port} {members + 1}\n")
        self._process.stdin.flush()
        return f"{host}:{self._port.port}"

    def close(self) -> None:
        """Kill its process; members that are still connected end with it."""
        self._process.kill()
        self._process.wait()
        if self._port is not None:
            self._port.close()
        if self._process.stdin is not None:
            with suppress(OSError):  # buffered input has no reader any more
                self._process.stdin.close()


class Meetings:
    """The meeting point of the running ring, and one that is prepared for the next ring."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        """Prepare the first one. `command`: the command of a meeting point's process."""
        self._command = command
        self._open: Rendezvous | None = None
        self.prepared = self._prepare()

    def next(self, host: str, members: int) -> str:
        """Close the current meeting point, open another and return its address.

        The address is empty for a single member. If the prepared process has died, for example for
        lack of memory, this starts a new one.

        Errors: `OSError` if the new one fails, too.
        """
        self.end_ring()
        if members == 1:
            return ""
        prepared, self.prepared = self.prepared, None
        address = None if prepared is None else _opened(prepared, host, members)
        if address is None:
            prepared = Rendezvous(self._command)
            address = prepared.open(host, members)
        self._open = prepared
        self.prepared = self._prepare()  # it imports JAX while the current one is in use
        return address

    def _prepare(self) -> Rendezvous | None:
        """Start the process of a meeting point; return None if that fails."""
        try:
            return Rendezvous(self._command)
        except OSError as error:
            log.warning("no meeting point is prepared for the next ring: %s", error)
            return None

    def end_ring(self) -> None:
        """Close the meeting point of the running ring; members that are still connected end."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def close(self) -> None:
        """Close both meeting points."""
        self.end_ring()
        if self.prepared is not None:
            self.prepared.close()
            self.prepared = None


def _opened(prepared: Rendezvous, host: str, members: int) -> str | None:
    """Open a prepared meeting point and return its address.

    If its process has died, close it and return None.
    """
    try:
        if prepared.is_alive:
            return prepared.open(host, members)
        log.warning("the prepared meeting point has died (process %d)", prepared.pid)
    except OSError as error:
        log.warning("the prepared meeting point died as it was opened: %s", error)
    prepared.close()
    return None


def join(address: str, members: int, rank: int) -> None:
    """Make this process a member of a ring; `jax.devices()` then returns the devices of all.

    Errors: `RuntimeError` if the other members do not come.
    """
    import jax
    from jax._src.distributed import global_state

    jax.distributed.initialize(
        address,
        members + 1,
        rank + 1,
        initialization_timeout=JOIN_S,
        heartbeat_timeout_seconds=HEARTBEAT_S,
        shutdown_timeout_seconds=1,
    )
    jax.devices()  # starts the backend, which reads the process id
    # JAX 0.10 lets only process 0 write to its compilation cache. Our process 0 compiles nothing,
    # so without this line every ring would compile everything again, for 10 s and more.
    global_state.process_id = 0


def connections() -> frozenset[int]:
    """Return the inode numbers of this process's sockets; none on a system without /proc."""
    inodes: set[int] = set()
    for each in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # the file was closed in the meantime
            if (named := SOCKET.fullmatch(os.readlink(each))) is not None:
                inodes.add(int(named[1]))
    return frozenset(inodes)


def hang_up(mine: frozenset[int]) -> None:
    """Shut down these connections, which the collective library has opened.

    The library keeps the connections of a broken ring open. A member on the other side that was no
    neighbour of the dead one would wait forever. This does not close the library's own descriptors.
    """
    for each in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            named = SOCKET.fullmatch(os.readlink(each))
            if named is not None and int(named[1]) in mine:
                with socket.socket(fileno=os.dup(int(each.name))) as end:
                    if end.type == socket.SOCK_STREAM:
                        end.shutdown(socket.SHUT_RDWR)


def leave(mine: frozenset[int]) -> None:
    """Leave the ring; arrays on the devices and compiled functions are lost.

    `mine`: the connections to the other members.
    """
    import jax
    from jax.extend.backend import clear_backends

    hang_up(mine)
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
    jax.clear_caches()
    clear_backends()


def main() -> None:
    """Host the coordination service of one ring until standard input is closed."""
    import jax

    jax.config.update("jax_enable_recoverability", True)  # a member's death must not end the host
    line = sys.stdin.readline().split()
    if len(line) == 3:
        host, port, count = line
        jax.distributed.initialize(
            f"{host}:{port}",
            int(count),
            0,
            initialization_timeout=JOIN_S,
            heartbeat_timeout_seconds=HEARTBEAT_S,
        )
        jax.devices()  # every member waits until all processes have announced their devices
        sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
