"""Where the processes of a ring meet: JAX's coordination service, in a process of its own.

JAX ends every process whose coordination service is gone, so it must not live in a member of the
ring that may be killed. It is hosted by process 0 of `jax.distributed`, and this is what process 0
is here: it hosts, has no part in the sums, and ends when nobody holds its input any more.

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
"""So long the members of a ring wait for each other when it forms."""
HEARTBEAT_S = 100
"""JAX's own default: a member that hangs for longer is taken for dead."""


class Rendezvous:
    """A meeting point that is being prepared, and then open for one ring."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        """Start its process.

        Errors: `OSError`.
        """
        self._port: HeldPort | None = None  # while the service may begin there
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
        """Whether its process runs."""
        return self._process.poll() is None

    def open(self, host: str, members: int) -> str:
        """Open it for so many members, and return where it is.

        Errors: `OSError` if its process has died.
        """
        self._port = HeldPort()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{host} {self._port.port} {members + 1}\n")
        self._process.stdin.flush()
        return f"{host}:{self._port.port}"

    def close(self) -> None:
        """It is over; members that are still there end with it."""
        self._process.kill()
        self._process.wait()
        if self._port is not None:
            self._port.close()
        if self._process.stdin is not None:
            with suppress(OSError):  # what was not written yet has no reader any more
                self._process.stdin.close()


class Meetings:
    """The meeting point of the ring that turns, and one prepared for the next."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        """Prepare the first one. `command`: what the process of a meeting point runs."""
        self._command = command
        self._open: Rendezvous | None = None
        self.prepared = self._prepare()

    def next(self, host: str, members: int) -> str:
        """Close the one that was, and open another; where it is, empty for one member alone.

        A prepared one may have died meanwhile, for want of memory: then a new one is used.

        Errors: `OSError` if that cannot be had either.
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
        self.prepared = self._prepare()  # it imports what it needs while this one is in use
        return address

    def _prepare(self) -> Rendezvous | None:
        """Return a meeting point that starts, None if no process can be had at present."""
        try:
            return Rendezvous(self._command)
        except OSError as error:
            log.warning("no meeting point is prepared for the next ring: %s", error)
            return None

    def end_ring(self) -> None:
        """Members that are still there end with it."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def close(self) -> None:
        self.end_ring()
        if self.prepared is not None:
            self.prepared.close()
            self.prepared = None


def _opened(prepared: Rendezvous, host: str, members: int) -> str | None:
    """Return where this prepared meeting point is open; None if its process has died, and then it
    is closed."""
    try:
        if prepared.is_alive:
            return prepared.open(host, members)
        log.warning("the prepared meeting point has died (process %d)", prepared.pid)
    except OSError as error:
        log.warning("the prepared meeting point died as it was opened: %s", error)
    prepared.close()
    return None


def join(address: str, members: int, rank: int) -> None:
    """Have this process be one of a ring: from here on `jax.devices()` are those of all.

    Errors: `RuntimeError` if the others do not come.
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
    jax.devices()  # the backend knows by now which process it is
    # JAX 0.10 lets process 0 alone write to its compilation cache, and ours compiles nothing: every
    # ring would compile everything anew, for 10 s and more.
    global_state.process_id = 0


def connections() -> frozenset[int]:
    """The sockets of this process, by the kernel's numbers; none where it has no /proc."""
    found: set[int] = set()
    for each in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # closed meanwhile
            if (named := SOCKET.fullmatch(os.readlink(each))) is not None:
                found.add(int(named[1]))
    return frozenset(found)


def hang_up(mine: frozenset[int]) -> None:
    """Shut these connections, which the library has opened.

    It keeps those of a ring that has broken, and whoever waits at the other end, and was no
    neighbour of the one that died, would wait for ever. Nothing is closed under the library's
    hands.
    """
    for each in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            named = SOCKET.fullmatch(os.readlink(each))
            if named is not None and int(named[1]) in mine:
                with socket.socket(fileno=os.dup(int(each.name))) as end:
                    if end.type == socket.SOCK_STREAM:
                        end.shutdown(socket.SHUT_RDWR)


def leave(mine: frozenset[int]) -> None:
    """Be alone again. Arrays on the devices, and what was compiled, are gone.

    `mine`: the connections to the others.
    """
    import jax
    from jax.extend.backend import clear_backends

    hang_up(mine)
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
    jax.clear_caches()
    clear_backends()


def main() -> None:
    import jax

    jax.config.update("jax_enable_recoverability", True)  # a death is the ring's affair, not ours
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
        jax.devices()  # the others learn whose devices there are, and wait for ours
        sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
