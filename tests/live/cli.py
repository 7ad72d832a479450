"""Runs the real command line in processes of its own, with a home and a temp folder of its own."""

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
"""In the environment of everything that is started: how what is left running is known."""
LONGEST_S = 150.0
"""So long nothing need move before a wait is given up. A run that moves on slowly is waited for,
within the limit of its test: how slow is the machine's affair, and who else is on it."""
WORK_S = 30.0
"""Of CPU time: of processes that are at work, also where no run says how far it is. An idle one
takes longer than `LONGEST_S` for it."""
GONE_AFTER_S = 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder for one run; short, since Ray puts sockets below it."""

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
        """Numbers and command lines of processes that came from here and still live."""
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
        """What is another thing whenever something here has moved on."""
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
    """What the run has written last of itself, as a whole line; empty before it has."""
    try:
        whole, _, _ = (run_dir / "metrics.jsonl").read_text().rpartition("\n")
    except FileNotFoundError:
        return {}
    return strict_json(whole.splitlines()[-1]) if whole else {}


def islands(status: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    told = status.get("islands", ())
    return [(each["island"], each["state"], each["life"], each["steps"]) for each in told]


def cpu_s(pid: int) -> float:
    """What a process has used so far; nothing if it has gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def strict_json(text: str) -> Any:
    """As whoever is not Python reads it: `json.loads` alone takes NaN for a number."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


class Patience:
    """Patience ends when nothing has moved for so long, in any place that is open."""

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
    """Wait for the end; if nothing moves for so long it is killed, and what it said is shown."""
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
    """Ask again and again until the answer is true, or nothing has moved for so long."""
    patience = Patience(within_s)
    while not (answer := what()):
        assert not patience.ended(), f"not yet, and nothing has moved for {within_s} s"
        time.sleep(0.1)
    return answer


@contextmanager
def place() -> Generator[Place]:
    """A place that must be left as it was found: nothing of it may go on running."""
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
    """A home of the tests' own, with the compiled programs that runs leave for each other."""
    folder = TemporaryDirectory(prefix="al-home-")
    atexit.register(folder.cleanup)
    return folder.name
