"""The owner's side of a run in a child process: its start, requests to it, and its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.storage.files import json_text
from coordinator.errors import UserMistake

LOG_LINES = 20
"""The last lines of the child's log that a message shows."""
PACKAGES = ("site-packages", "dist-packages")
"""The names of the folders with installed packages."""
GONE_S = 5.0
"""Seconds from the end of the child's replies to the end of its process."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run's process."""

    kind: str
    """"finished": with a summary; "mistake": the user can fix it; "failed": anything else."""
    message: str
    """The reason; empty if it has finished."""


START = (
    "from archipelago.__main__ import refuse_foreign; refuse_foreign(); "
    "from archipelago.child_main import main; main()"
)
"""The program of the child process: `archipelago.child_main`, if all packages are ours."""


class ChildProcess:
    """The process of a run; it ends with this process, however this process ends."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Start the process with this order (`archipelago.child_main`), and return at once."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this object
        weakref.finalize(self, self._log.close)
        self._process = subprocess.Popen(
            [sys.executable, "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C is for this process, which then decides
        )
        self._lock, self._requests = threading.Lock(), 0
        self._replies: dict[int, Future[Any]] = {}
        self._ending: Future[Ending] = Future()
        self._write({**order, "owner": os.getpid()})
        threading.Thread(target=self._read, name="archipelago-replies", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._process.pid

    @property
    def ending(self) -> Ending | None:
        """The end of the run; None while its process is there."""
        return self._ending.result() if self._ending.done() else None

    def wait(self, timeout_s: float) -> Ending | None:
        """Wait for the end for at most `timeout_s` seconds; return None if it has not come."""
        with suppress(TimeoutError):
            return self._ending.result(timeout_s)
        return None

    def ask(self, call: str, *arguments: Any) -> Any:
        """Call a method of the run's fleet, and return its answer.

        Errors: `UserMistake` if the run refuses, or has ended.
        """
        reply: Future[Any] = Future()
        with self._lock:
            self._requests += 1
            number = self._requests
            self._replies[number] = reply
        self._write({"id": number, "call": call, "arguments": [*arguments]})
        if self._ending.done():
            self._fail_requests()
        return reply.result()

    def stop(self) -> None:
        """Request a graceful end; do nothing if the run has ended."""
        self._write({"call": "stop"})

    def end_now(self) -> None:
        """Request an end at once, without a summary; processes are still cleaned up."""
        self._write({"call": "end"})

    def log(self) -> str:
        """Return all that the process has printed: warnings, and lines about measurements."""
        number = self._log.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def _write(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._lock, suppress(BrokenPipeError, ValueError):  # the process has ended
            self._process.stdin.write(json_text(line) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        """Pass replies on until the process closes its end, then record how it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        ending = None
        for line in self._process.stdout:
            reply = json.loads(line)
            if "ending" in reply:
                ending = Ending(reply["ending"], reply["message"])
                continue
            with self._lock:
                waiting = self._replies.pop(reply["id"])
            if "mistake" in reply:
                waiting.set_exception(UserMistake(reply["mistake"]))
            else:
                waiting.set_result(reply["value"])
        code = self._process.wait()
        self._process.stdout.close()
        with self._lock, suppress(BrokenPipeError):
            self._process.stdin.close()
        self._ending.set_result(ending or Ending("failed", self._sudden(code)))
        self._fail_requests()

    def _fail_requests(self) -> None:
        with self._lock:
            left, self._replies = self._replies, {}
        for reply in left.values():
            reply.set_exception(UserMistake("the run has ended; there is nothing to do"))

    def _sudden(self, code: int) -> str:
        """Return a message for a process that has ended without one."""
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        last = "\n".join(self.log().splitlines()[-LOG_LINES:])
        return f"its process has ended {how}" + (f":\n{last}" if last else "")


def child_environment() -> dict[str, str]:
    """Return the environment of the child, in which it can import what this process can.

    JAX uses the CPU there, unless `JAX_PLATFORMS` names another platform: the accelerators belong
    to the islands.
    """
    paths = [Path(entry).resolve() for entry in sys.path]
    own = [str(path) for path in paths if path.exists() and not _is_installed(path)]
    own += [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = os.pathsep.join(dict.fromkeys(own))
    return {"JAX_PLATFORMS": "cpu", **os.environ, "PYTHONPATH": path}


def _is_installed(path: Path) -> bool:
    """Return whether an entry of `sys.path` is of this Python, so that the child has it anyway.

    A project may lie in the folder of its environment, or below /usr as the system's Python does.
    """
    prefixes = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    if not any(path.is_relative_to(prefix) for prefix in prefixes):
        return False
    library = Path(sysconfig.get_path("stdlib")).resolve()
    return path.is_relative_to(library) or path.name in PACKAGES
