"""`archipelago bench recovery` and `bench faults`: what it costs when things die.

Both run the real command line in processes of its own, break it with `chaos`, and read the figures
off what the run leaves: its tape, its notes and its looks.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster.bench import DEMO_ISLANDS, demo, median, told
from cluster.depot import Folder
from cluster.files import read_figures
from cluster.meaning import load_layout
from cluster.names import SYNCER
from cluster.notes import read_notes
from cluster.store import read_tape
from coordinator.errors import RunFailed
from coordinator.protocol import Arrived, Island, Merged

LONGEST_WAIT_S = 300.0
VICTIM = Island("local-1")
FOREVER = 10**9
RAW_SHARE = 0.25
"""Of the time, for the windows without a goal."""
PACED_SHARE = 0.5
"""Of the steps per second that the islands reach together when nobody slows them."""


@dataclass(frozen=True, slots=True)
class Raylets:
    """A Ray cluster of several nodes: its address, and what must be in the environment of whoever
    shall be let in."""

    address: str
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Going:
    """A run in processes of its own."""

    process: subprocess.Popen[str]
    run_dir: Path
    islands: int
    environment: dict[str, str]

    @property
    def looks(self) -> list[dict[str, Any]]:
        """All that it has said of itself so far."""
        try:
            lines = (self.run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def until(self, what: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until this holds of what it said last.

        Errors: `RunFailed` if it ends first, or that takes minutes.
        """
        end_s = time.monotonic() + LONGEST_WAIT_S
        while not ((looks := self.looks) and what(looks[-1])):
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise RunFailed(f"the run got stuck or ended:\n{self.end()[1][-2000:]}")
            time.sleep(0.2)
        return looks[-1]

    def until_all_contribute(self, life: int = 1) -> dict[str, Any]:
        """... all live, and the victim in this life at least."""
        return self.until(
            lambda look: (
                sum(each["state"] == "live" for each in look["islands"]) == self.islands
                and all(each["contributions"] > 0 for each in look["islands"])
                and _of(look, VICTIM)["life"] >= life
                and all(VICTIM in each["participants"] for each in look["fragments"])
            )
        )

    def break_it(self, *arguments: str) -> None:
        """With `archipelago chaos`.

        Errors: `RunFailed` if it is not to be broken.
        """
        done = subprocess.run(
            [sys.executable, "-m", "cluster", "chaos", str(self.run_dir), "--json", *arguments],
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
        plan = self.run_dir.with_name("plan.toml")
        plan.write_text(f'[[faults]]\nafter_s = 0.0\nkind = "{kind}"\nisland = "{whom}"\n')
        self.break_it("--plan", str(plan))

    def kill_and_wait(self, whom: str, kind: str = "kill") -> None:
        """... until the victim has begun another life, and contributes in it. `kind`: "node" for
        all that is where it is."""
        life = _of(self.looks[-1], VICTIM)["life"]
        self.kill(whom, kind)
        self.until_all_contribute(life + 1)

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
    preset: str, overrides: Sequence[str], home: Path, raylets: Raylets | None = None
) -> Generator[Going]:
    """A run that does not end by itself; ended with the block. `raylets`: where it is to be, if not
    in a Ray of its own."""
    config = demo(preset, steps=FOREVER, seed=0, overrides=overrides)
    with TemporaryDirectory(prefix="archipelago-bench-") as folder:
        path, run_dir = Path(folder) / "bench.toml", Path(folder) / "run"
        path.write_text(config.toml())
        command = ["run", str(path), "--json", "--run-dir", str(run_dir)]
        environment = {**os.environ, "HOME": str(home)}
        if raylets is not None:
            command += ["--address", raylets.address]
            environment |= raylets.environment
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        run = Going(process, run_dir, len(config.island_names), environment)
        try:
            yield run
        finally:
            run.end()


# --- recovery -------------------------------------------------------------------------------------


@contextmanager
def several(nodes: int) -> Generator[Raylets]:
    """A Ray cluster on this machine, of so many nodes with room for one island each. It ends with
    the block, or with this process.

    Errors: `RunFailed` if it does not start.
    """
    mine = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.bench_raylets", str(nodes)],
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


@dataclass(frozen=True, slots=True)
class Story:
    """When what happened in a run, in seconds of its own clock; arrivals with the incarnation."""

    merges: list[float]
    arrivals: dict[Island, list[tuple[float, int]]]
    faults: list[tuple[float, str]]
    held: list[tuple[float, set[str]]]

    @staticmethod
    def of(run_dir: Path) -> Story:
        depot = Folder(run_dir)
        rows = read_tape(depot, load_layout(depot).fingerprint).events
        arrivals: dict[Island, list[tuple[float, int]]] = {}
        for row in rows:
            if isinstance(row.event, Arrived):
                life = row.event.contribution.id.life
                arrivals.setdefault(life.island, []).append((row.now_s, life.incarnation))
        notes = read_notes(depot)
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


def recovery(
    *, preset: str, repeats: int, overrides: Sequence[str], say: Callable[[str], None]
) -> dict[str, object]:
    """SIGKILL to a learner, then to the syncer, again and again, on a run with four islands; then
    to a learner of such a run that has a warm spare; then to the raylet of one that has a node for
    each island and for each death.

    The first start is in an empty home, so without compiled programs; `learner_back_s` has them.
    """
    figures: dict[str, list[float]] = {
        "merge_period_s": [], "learner_gap_s": [], "learner_back_s": [], "syncer_gap_s": [],
        "cold_start_s": [], "learner_back_spare_s": [], "node_back_s": [],
    }  # fmt: skip
    with TemporaryDirectory(prefix="archipelago-home-") as home:
        with going(preset, overrides, Path(home)) as run:
            run.until_all_contribute()
            time.sleep(5.0)  # some merges of an ordinary period
            for _ in range(repeats):
                run.kill_and_wait(VICTIM)
            for _ in range(repeats):
                run.kill_and_wait(SYNCER)
            run.end()
            story = Story.of(run.run_dir)
        with going(preset, [*overrides, "islands.0.spares=1"], Path(home)) as run:
            run.until_all_contribute()
            for _ in range(repeats):
                run.until(lambda look: look["spares"] == 1)
                run.kill_and_wait(VICTIM)
            run.end()
            spared = Story.of(run.run_dir)
        one_a_node = [*overrides, "islands.0.resources.CPU=1.0"]
        with (
            several(DEMO_ISLANDS + repeats) as raylets,
            going(preset, one_a_node, Path(home), raylets) as run,
        ):
            run.until_all_contribute()
            for _ in range(repeats):
                run.kill_and_wait(VICTIM, "node")
            run.end()
            moved = Story.of(run.run_dir)
    for name, other in (("learner_back_spare_s", spared), ("node_back_s", moved)):
        figures[name] = [other.back_s(VICTIM, at_s) - at_s for at_s, _ in other.faults]
    first_s = story.faults[0][0]
    settled_s = max(arrivals[0][0] for arrivals in story.arrivals.values())
    figures["cold_start_s"] = story.cold_starts_s()
    figures["merge_period_s"] = [
        b - a for a, b in pairwise(story.merges) if a > settled_s and b < first_s
    ]
    for at_s, whom in story.faults:
        if whom == VICTIM:
            back_s = story.back_s(VICTIM, at_s)
            figures["learner_back_s"].append(back_s - at_s)
            figures["learner_gap_s"].append(story.gap_s(at_s, back_s))
        else:
            figures["syncer_gap_s"].append(story.next_merge_s(at_s + 1.0) - at_s)
    shown = {name: median(samples) for name, samples in figures.items()}
    for name, middle in shown.items():
        say(f"{name} {middle.value:.2f} ({middle.low:.2f} to {middle.high:.2f})")
    result: dict[str, object] = {"repeats": repeats}
    for name, middle in shown.items():
        result |= told(name, middle)
    return result


# --- faults ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """What a run did in the seconds from when everybody was there."""

    merged_per_s: float
    steps_per_s: float
    seconds: float
    summary: dict[str, Any]
    lost_merges: int


def faults(
    *,
    preset: str,
    islands: int,
    kill_every_s: float,
    for_s: float,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> dict[str, object]:
    """Merged tokens per second with an island killed every so often, against the same without.

    Unpaced first, for a quarter of the time. Then paced to half of the steps per second that this
    came to without kills, so that the machine has something left for a restart, and that who is
    left does not step faster while another is away. `paced_share` says what it came to, in merged
    tokens per second.
    """
    mine = [*overrides, f"islands.0.count={islands}"]
    result: dict[str, object] = {"islands": islands, "kill_every_s": kill_every_s, "for_s": for_s}
    with TemporaryDirectory(prefix="archipelago-home-") as home:

        def pair(name: str, overrides: Sequence[str], for_s: float) -> tuple[Window, Window]:
            without = _window(preset, overrides, Path(home), for_s, None)
            with_plan = _window(preset, overrides, Path(home), for_s, kill_every_s)
            retained = with_plan.merged_per_s / without.merged_per_s
            say(f"{name} {retained:.3f}: {with_plan.merged_per_s:.0f} tokens/s merged")
            result[name] = retained
            return without, with_plan

        raw, _ = pair("raw_retained", mine, max(RAW_SHARE * for_s, 2 * kill_every_s))
        step_s = islands / (PACED_SHARE * raw.steps_per_s)
        paced, with_plan = pair("retained", [*mine, f"islands.0.step_s={step_s:.3f}"], for_s)
    away_s = sum(with_plan.summary["recovery_s"])
    possible = 1 - away_s / (islands * with_plan.seconds)
    retained = with_plan.merged_per_s / paced.merged_per_s
    return result | {
        "possible": possible,
        "retained_of_possible": retained / possible,
        "uptime": with_plan.summary["uptime"],
        "mean_participants": with_plan.summary["mean_participants"],
        "heldout_loss_delta": with_plan.summary["heldout_loss"] - paced.summary["heldout_loss"],
        "lost_merges": with_plan.lost_merges,
        "faults": with_plan.summary["faults"],
        "recovery_s": statistics.median(with_plan.summary["recovery_s"]),
        "step_s": step_s,
        "paced_share": paced.merged_per_s / raw.merged_per_s,
    }


def _window(
    preset: str, overrides: Sequence[str], home: Path, for_s: float, kill_every_s: float | None
) -> Window:
    with going(preset, overrides, home) as run:
        first = run.until_all_contribute()
        began_s = time.monotonic()
        if kill_every_s is not None:
            run.break_it("--kill-every", str(kill_every_s), "--for", str(for_s - kill_every_s))
        time.sleep(max(0.0, began_s + for_s - time.monotonic()))
        last = run.looks[-1]
        summary, _ = run.end()
    seconds = last["elapsed_s"] - first["elapsed_s"]
    merged = last["figures"]["tokens_merged"] - first["figures"]["tokens_merged"]
    stepped = sum(each["steps"] for each in last["islands"]) - sum(
        each["steps"] for each in first["islands"]
    )
    return Window(
        merged / seconds, stepped / seconds, seconds, summary, last["figures"]["merges_lost"]
    )
