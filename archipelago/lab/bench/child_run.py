"""A run in processes of its own, for benches that break it, and what it leaves to be read."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from archipelago.lab.bench.stats import FOUR, demo
from cluster.storage.files import read_figures
from cluster.storage.folder import Folder
from cluster.storage.layout import load_layout
from cluster.storage.metrics_log import LOOKS, last_look
from cluster.storage.playback import TapeRow, read_tape
from cluster.syncer.journal import read_notes
from coordinator.errors import RunFailed
from coordinator.protocol import Arrived, Island, Merged

LONGEST_WAIT_S = 300.0
VICTIM = Island("local-1")
FOREVER = 10**9


@dataclass(frozen=True, slots=True)
class Raylets:
    """A Ray cluster of several nodes: its address, and what must be in the environment of whoever
    shall be let in."""

    address: str
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run in processes of its own."""

    process: subprocess.Popen[str]
    run_dir: Path
    islands: int
    environment: dict[str, str]

    @property
    def look(self) -> dict[str, Any] | None:
        """What it has said of itself last."""
        said = last_look(self.run_dir / LOOKS)
        return None if said is None else json.loads(said)

    def until(self, what: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until this holds of what it said last.

        Errors: `RunFailed` if it ends first, or that takes minutes.
        """
        end_s = time.monotonic() + LONGEST_WAIT_S
        while (look := self.look) is None or not what(look):
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise RunFailed(f"the run got stuck or ended:\n{self.end()[1][-2000:]}")
            time.sleep(0.2)
        return look

    def until_all_contribute(self, life: int = 1, victim: Island = VICTIM) -> dict[str, Any]:
        """Wait until all are live, the victim in this life at least, and contribute."""
        return self.until(
            lambda look: (
                sum(each["state"] == "live" for each in look["islands"]) == self.islands
                and all(each["contributions"] > 0 for each in look["islands"])
                and _of(look, victim)["life"] >= life
                and all(victim in each["participants"] for each in look["fragments"])
            )
        )

    def break_it(self, *arguments: str) -> None:
        """With `archipelago chaos`.

        Errors: `RunFailed` if it is not to be broken.
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

    def kill(self, whom: str, kind: str) -> None:
        self.kill_by([(0.0, whom)], kind)

    def kill_by(self, plan: Sequence[tuple[float, str]], kind: str = "kill") -> None:
        """After how many seconds whom; returns with the last one."""
        path = self.run_dir.with_name("plan.toml")
        path.write_text(
            "".join(
                f'[[faults]]\nafter_s = {after_s}\nkind = "{kind}"\nisland = "{whom}"\n'
                for after_s, whom in plan
            )
        )
        self.break_it("--plan", str(path))

    def kill_and_wait(self, whom: str, kind: str = "kill", victim: Island = VICTIM) -> None:
        """Kill, then wait until the victim has begun another life, and contributes in it. `kind`:
        "node" for all that is where it is."""
        look = self.look
        assert look is not None
        life = _of(look, victim)["life"]
        self.kill(whom, kind)
        self.until_all_contribute(life + 1, victim)

    def end(self) -> tuple[dict[str, Any], str]:
        """Stop it gracefully; its summary, and what it said."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        out, err = self.process.communicate(timeout=LONGEST_WAIT_S)
        return (read_figures(out) if out.strip() else {}), err


def _of(look: dict[str, Any], island: Island) -> dict[str, Any]:
    return next(each for each in look["islands"] if each["island"] == island)


@contextmanager
def going(
    preset: str,
    overrides: Sequence[str],
    home: Path,
    raylets: Raylets | None = None,
    islands: Sequence[Mapping[str, object]] = FOUR,
) -> Generator[ChildRun]:
    """A run that does not end by itself; ended with the block. `raylets`: where it is to be, if not
    in a Ray of its own."""
    config = demo(preset, steps=FOREVER, seed=0, overrides=overrides, islands=islands)
    with TemporaryDirectory(prefix="archipelago-bench-") as folder:
        path, run_dir = Path(folder) / "bench.toml", Path(folder) / "run"
        path.write_text(config.toml())
        command = ["run", str(path), "--json", "--run-dir", str(run_dir)]
        environment = {**os.environ, "HOME": str(home)}
        if raylets is not None:
            command += ["--address", raylets.address]
            environment |= raylets.environment
        process = subprocess.Popen(
            [sys.executable, "-m", "archipelago", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        run = ChildRun(process, run_dir, len(config.island_names), environment)
        try:
            yield run
        finally:
            run.end()


@contextmanager
def several(nodes: int) -> Generator[Raylets]:
    """A Ray cluster on this machine, of so many nodes with room for one island each. It ends with
    the block, or with this process.

    Errors: `RunFailed` if it does not start.
    """
    mine = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    process = subprocess.Popen(
        [sys.executable, "-m", "archipelago.lab.bench.raylets", str(nodes)],
        env={**os.environ, **mine},
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
        yield Raylets(address, mine)
    finally:
        process.stdin.close()
        process.wait(LONGEST_WAIT_S)


def rows_of(run_dir: Path) -> list[TapeRow]:
    """All events of a run, from its tape."""
    depot = Folder(run_dir)
    return read_tape(depot, load_layout(depot).fingerprint).events


@dataclass(frozen=True, slots=True)
class Story:
    """When what happened in a run, in seconds of its own clock; arrivals with the incarnation."""

    merges: list[float]
    arrivals: dict[Island, list[tuple[float, int]]]
    faults: list[tuple[float, str]]
    held: list[tuple[float, set[str]]]

    @staticmethod
    def of(run_dir: Path) -> Story:
        rows = rows_of(run_dir)
        arrivals: dict[Island, list[tuple[float, int]]] = {}
        for row in rows:
            if isinstance(row.event, Arrived):
                life = row.event.contribution.id.life
                arrivals.setdefault(life.island, []).append((row.now_s, life.incarnation))
        notes = read_notes(Folder(run_dir))
        return Story(
            [row.now_s for row in rows if isinstance(row.event, Merged)],
            arrivals,
            [(note.now_s, note.what[0]) for note in notes if note.kind == "fault"],
            [(note.now_s, {*note.what[0]}) for note in notes if note.kind == "held"],
        )

    def gap_s(self, from_s: float, to_s: float) -> float:
        """The longest time without a merge that touches this time."""
        around = [b - a for a, b in pairwise(self.merges) if b > from_s and a < to_s]
        return max(around)

    def next_merge_s(self, after_s: float) -> float:
        return next(at_s for at_s in self.merges if at_s > after_s)

    def back_s(self, island: Island, killed_s: float) -> float:
        """When it contributed again, in a new life."""
        known = max(life for s, life in self.arrivals[island] if s <= killed_s)
        return next(s for s, life in self.arrivals[island] if life > known)

    def cold_starts_s(self) -> list[float]:
        """From an island's devices to its first contribution."""
        known: dict[str, float] = {}
        for at_s, islands in self.held:
            for island in islands:
                known.setdefault(island, at_s)
        return [self.arrivals[Island(i)][0][0] - at_s for i, at_s in known.items()]
