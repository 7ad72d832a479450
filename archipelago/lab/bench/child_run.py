"""A run in processes of its own, for benchmarks that break it, and the files that it leaves."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from archipelago.lab.bench.stats import FOUR, demo
from cluster.storage.files import read_figures
from cluster.storage.metrics_log import LOOKS, last_look
from coordinator.errors import RunFailed
from coordinator.protocol import Island

LONGEST_WAIT_S = 300.0
"""Seconds that one wait for the run may take."""
VICTIM = Island("local-1")
"""The island that the benchmarks kill."""
OUT, ERR = "out.txt", "err.txt"
FOREVER = 10**9
"""A number of steps that is never reached."""


@dataclass(frozen=True, slots=True)
class Raylets:
    """A Ray cluster of several nodes."""

    address: str
    """The address of the cluster."""
    environment: dict[str, str]
    """The environment variables that a process needs in order to connect."""


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run in processes of its own."""

    process: subprocess.Popen[bytes]
    """The process of `archipelago run`."""
    output: Path
    """The folder with its standard output and standard error, `OUT` and `ERR`."""
    run_dir: Path
    islands: int
    """The number of islands."""
    environment: dict[str, str]
    """The environment of the run, and of the commands that break it."""

    @property
    def look(self) -> dict[str, Any] | None:
        """The last status that the run has written; None before the first."""
        text = last_look(self.run_dir / LOOKS)
        return None if text is None else json.loads(text)

    def until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until the predicate holds for the last status, and return that status.

        Errors: `RunFailed` if the run ends first, or that takes minutes.
        """
        end_s = time.monotonic() + LONGEST_WAIT_S
        while (status := self.look) is None or not holds(status):
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise RunFailed(f"the run got stuck or ended:\n{self.end()[1][-2000:]}")
            time.sleep(0.2)
        return status

    def until_all_contribute(self, life: int = 1, victim: Island = VICTIM) -> dict[str, Any]:
        """Wait until all islands are live and contribute, the victim in this life or later."""
        return self.until(
            lambda look: (
                sum(each["state"] == "live" for each in look["islands"]) == self.islands
                and all(each["contributions"] > 0 for each in look["islands"])
                and _of(look, victim)["life"] >= life
                and all(victim in each["participants"] for each in look["fragments"])
            )
        )

    def inject_faults(self, *arguments: str) -> None:
        """Inject faults with `archipelago chaos`.

        Errors: `RunFailed` if the command fails, or every fault is refused.
        """
        done = subprocess.run(
            [sys.executable, "-m", "archipelago", "chaos", str(self.run_dir), "--json", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not any(
            each["refused"] is None for each in json.loads(done.stdout)["faults"]
        ):
            raise RunFailed(f"it could not be broken: {done.stdout}{done.stderr[-2000:]}")

    def kill(self, target: str, kind: str) -> None:
        """Kill one process now; a `kind` of "node" kills everything on its node."""
        self.kill_by([(0.0, target)], kind)

    def kill_by(self, plan: Sequence[tuple[float, str]], kind: str = "kill") -> None:
        """Kill each victim after its number of seconds, and return after the last one."""
        path = self.run_dir.with_name("plan.toml")
        path.write_text(
            "".join(
                f'[[faults]]\nafter_s = {after_s}\nkind = "{kind}"\nisland = "{victim}"\n'
                for after_s, victim in plan
            )
        )
        self.inject_faults("--plan", str(path))

    def kill_and_wait(self, target: str, kind: str = "kill", victim: Island = VICTIM) -> None:
        """Kill, then wait until the victim has begun another life and contributes in it.

        A `kind` of "node" kills everything on the node of `target`.
        """
        status = self.look
        assert status is not None
        life = _of(status, victim)["life"]
        self.kill(target, kind)
        self.until_all_contribute(life + 1, victim)

    def end(self, within_s: float = LONGEST_WAIT_S) -> tuple[dict[str, Any], str]:
        """Stop the run gracefully, and return its summary, empty if it failed, and its errors.

        Errors: `RunFailed` if it does not end within `within_s` seconds; it is killed then.
        """
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        is_killed = killed_if_late(self.process, within_s)
        out, err = ((self.output / name).read_text() for name in (OUT, ERR))
        if is_killed:
            raise RunFailed(
                f"the run did not end within {within_s:g} s of SIGINT, so it was killed; the end "
                f"of its standard error:\n{err[-2000:]}"
            )
        figures = read_figures(out) if out.strip() else {}
        return ({} if "error" in figures else figures), err


def _of(look: dict[str, Any], island: Island) -> dict[str, Any]:
    """Return the status of one island."""
    return next(each for each in look["islands"] if each["island"] == island)


@contextmanager
def endless_run(
    preset: str,
    overrides: Sequence[str],
    home: Path,
    raylets: Raylets | None = None,
    islands: Sequence[Mapping[str, object]] = FOUR,
) -> Generator[ChildRun]:
    """Start a run that does not end by itself, and end it with the block.

    `raylets` is the cluster to use; without it the run starts a Ray of its own.
    """
    config = demo(preset, steps=FOREVER, seed=0, overrides=overrides, islands=islands)
    with TemporaryDirectory(prefix="archipelago-bench-") as folder:
        path, run_dir = Path(folder) / "bench.toml", Path(folder) / "run"
        path.write_text(config.toml())
        command = ["run", str(path), "--json", "--run-dir", str(run_dir)]
        environment = {**os.environ, "HOME": str(home)}
        if raylets is not None:
            command += ["--address", raylets.address]
            environment |= raylets.environment
        command = [sys.executable, "-m", "archipelago", *command]
        process = started(command, environment, Path(folder))
        run = ChildRun(process, Path(folder), run_dir, len(config.island_names), environment)
        try:
            with ends_on_sigterm():
                yield run
        finally:
            run.end()


@contextmanager
def ends_on_sigterm() -> Generator[None]:
    """Raise `SystemExit` in the block on SIGTERM, so that what it has started is ended.

    The run is in a session of its own, so `timeout` and a closed terminal do not reach it.
    """

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def started(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with its output in the files `OUT` and `ERR`.

    A process that writes to a pipe blocks once the pipe is full, and a benchmark does not read
    while it waits. Files do not block.
    """
    with (folder / OUT).open("wb") as out, (folder / ERR).open("wb") as err:
        return subprocess.Popen(
            command, env=environment, stdout=out, stderr=err, start_new_session=True
        )


def killed_if_late(process: subprocess.Popen[Any], within_s: float) -> bool:
    """Wait for a process with a session of its own, and kill its group after `within_s` seconds.

    Return whether it was killed.
    """
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


@contextmanager
def several(nodes: int) -> Generator[Raylets]:
    """Start a Ray cluster on this machine, of `nodes` nodes with room for one island each.

    The cluster ends with the block, or with this process.

    Errors: `RunFailed` if it does not start, or does not end within minutes.
    """
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    process = subprocess.Popen(
        [sys.executable, "-m", "archipelago.lab.bench.raylets", str(nodes)],
        env={**os.environ, **settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise RunFailed(f"no Ray cluster of {nodes} nodes could be started on this machine")
        yield Raylets(address, settings)
    finally:
        process.stdin.close()
        if killed_if_late(process, LONGEST_WAIT_S):
            raise RunFailed(
                f"the Ray cluster of {nodes} nodes did not end within {LONGEST_WAIT_S:g} s, so it "
                "was killed; `ps` shows whether a raylet is left"
            )
