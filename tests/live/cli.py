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
GONE_AFTER_S = 20.0


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
        return subprocess.Popen(
            [sys.executable, "-m", "cluster", *arguments],
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
        """What the run has written last of itself, as a whole line; empty before it has."""
        try:
            whole, _, _ = (self.run_dir / "metrics.jsonl").read_text().rpartition("\n")
        except FileNotFoundError:
            return {}
        return strict_json(whole.splitlines()[-1]) if whole else {}

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


def strict_json(text: str) -> Any:
    """As whoever is not Python reads it: `json.loads` alone takes NaN for a number."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def finish(process: subprocess.Popen[str], within_s: float = LONGEST_S) -> Finished:
    """Wait for the end; a process that takes too long is killed, and what it said is shown."""
    try:
        out, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, err = process.communicate()
        raise AssertionError(f"not over within {within_s} s:\n{err}") from None
    return Finished(process.returncode, out, err)


def until(what: Callable[[], Any], within_s: float = LONGEST_S) -> Any:
    """Ask again and again until the answer is true."""
    end_s = time.monotonic() + within_s
    while not (answer := what()):
        assert time.monotonic() < end_s, f"not within {within_s} s"
        time.sleep(0.1)
    return answer


@contextmanager
def place() -> Generator[Place]:
    """A place that must be left as it was found: nothing of it may go on running."""
    with TemporaryDirectory(prefix="al-") as folder:
        here = Place(Path(folder))
        try:
            yield here
            until(lambda: not here.left_running(), GONE_AFTER_S)
        finally:
            for number in here.left_running():
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


@cache
def home() -> str:
    """A home of the tests' own, with the compiled programs that runs leave for each other."""
    folder = TemporaryDirectory(prefix="al-home-")
    atexit.register(folder.cleanup)
    return folder.name
