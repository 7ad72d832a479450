"""Helpers that run the real command line in processes with their own home and temp folder."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
TINY = ROOT / "examples" / "tiny.toml"
FAULTS = ROOT / "tests" / "faults.toml"
MARK = "ARCHIPELAGO_LIVE_TEST"
"""An environment variable of every started process, by which leftovers are recognized."""
LONGEST_S = 150.0
"""The seconds without any progress after which a wait is given up.

A slow run is waited for within the limit of its test, because its speed depends on the machine and
its other load.
"""
WORK_S = 30.0
"""The CPU seconds that count as progress of processes, also where no run reports any.

Idle processes need longer than `LONGEST_S` for so much.
"""
GONE_AFTER_S = 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder for one run; its path is short, because Ray puts sockets below it."""

    folder: Path

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def environment(self) -> dict[str, str]:
        mine = {"HOME": home(), "RAY_TMPDIR": str(self.folder), MARK: str(self.folder)}
        return {**os.environ, "PYTHONPATH": str(self.folder), **mine}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start_python("-m", "archipelago", *arguments)

    def start_python(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> Finished:
        return finish(self.start(*arguments))

    def left_running(self) -> dict[int, str]:
        """Return the ids and command lines of live processes that were started here."""
        wanted = f"{MARK}={self.folder}".encode()
        found: dict[int, str] = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (process / "environ").read_bytes().split(b"\0"):
                    command = (process / "cmdline").read_bytes()
                    found[int(process.name)] = command.replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    @property
    def last_status(self) -> dict[str, Any]:
        return last_status(self.run_dir)

    def signs(self) -> object:
        """Return a value that changes with any progress here."""
        submitted = (self.folder / "archipelago" / "runs").glob("*")
        status = [last_status(run_dir) for run_dir in (self.run_dir, *sorted(submitted))]
        said = [
            (each.get("phase"), each.get("t"), each.get("merges"), islands(each)) for each in status
        ]
        return said, int(sum(map(cpu_s, self.left_running())) / WORK_S)

    @property
    def merges(self) -> int:
        return self.last_status.get("merges", 0)


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        (line,) = self.out.splitlines()
        return strict_json(line)


def last_status(run_dir: Path) -> dict[str, Any]:
    """Return the run's last status that is a whole line; empty if there is none."""
    try:
        whole, _, _ = (run_dir / "metrics.jsonl").read_text().rpartition("\n")
    except FileNotFoundError:
        return {}
    return strict_json(whole.splitlines()[-1]) if whole else {}


def islands(status: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    told = status.get("islands", ())
    return [(each["island"], each["state"], each["life"], each["steps"]) for each in told]


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def strict_json(text: str) -> Any:
    """Parse strict JSON, as other languages do: `json.loads` alone accepts NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


class Patience:
    """A timeout that ends when no open place has made progress for `within_s`."""

    def __init__(self, within_s: float) -> None:
        self._within_s, self._signs = within_s, _signs()
        self._moved_s = self._looked_s = time.monotonic()

    def ended(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._looked_s > SIGNS_EVERY_S:
            self._looked_s = now_s
            if (signs := _signs()) != self._signs:
                self._signs, self._moved_s = signs, now_s
        return now_s - self._moved_s > self._within_s


def _signs() -> list[object]:
    return [here.signs() for here in _open]


_open: list[Place] = []
SIGNS_EVERY_S = 2.0


def finish(process: subprocess.Popen[str], within_s: float = LONGEST_S) -> Finished:
    """Wait for the end; without progress for `within_s`, kill the process and show its output."""
    patience = Patience(within_s)
    while True:
        try:
            out, err = process.communicate(timeout=SIGNS_EVERY_S)
            return Finished(process.returncode, out, err)
        except subprocess.TimeoutExpired:
            if not patience.ended():
                continue
        os.killpg(process.pid, signal.SIGKILL)
        _, err = process.communicate()
        raise AssertionError(f"not over, and nothing has moved for {within_s} s:\n{err}")


def until(what: Callable[[], Any], within_s: float = LONGEST_S) -> Any:
    """Poll until the answer is true; fail after `within_s` without progress."""
    patience = Patience(within_s)
    while not (answer := what()):
        assert not patience.ended(), f"not yet, and nothing has moved for {within_s} s"
        time.sleep(0.1)
    return answer


@contextmanager
def place() -> Generator[Place]:
    """Yield a place for one run, and check that no process of it is left running."""
    with TemporaryDirectory(prefix="al-") as folder:
        here = Place(Path(folder))
        _open.append(here)
        try:
            yield here
            until(lambda: not here.left_running(), GONE_AFTER_S)
        finally:
            _open.remove(here)
            for number in here.left_running():
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


@cache
def home() -> str:
    """Return a home folder for the tests, in which runs share compiled programs."""
    folder = TemporaryDirectory(prefix="al-home-")
    atexit.register(folder.cleanup)
    return folder.name
