"""A soak test: a submitted run under faults of all kinds, and a search for what grows.

`make soak`, or `python -m tests.soak --for 600`. Faults that end a service come in the first third,
so that the processes that live through the other two can be compared: their own memory (anonymous
pages) in the last third with that in the middle third. Local-0 gets no faults. At the end the test
looks for objects, placement groups, zombies, files beyond the retention, and exceptions of our own
in any log. `--islands N` sets the number of islands, and `--hogs N` starts N processes that keep a
core busy.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archipelago.lab.bench import procfs
from cluster.config.load import load
from cluster.names import namespace_of
from tests.live.cli import TINY, until
from tests.live.test_cluster import RUN, WITHIN_S, Raylets, held, up

FLAT = 0.03
EVERY_S, LOOK_S = 12.0, 5.0
ENDING = [("kill", whom) for whom in ("syncer", "shard-0", "evaluator", "fleet")]
PASSING = [("stop", "syncer"), ("disk", "syncer"), ("stop", "shard-0"), ("disk", "shard-0")]
KINDS = ("kill", "kill", "stop", "slow", "cut", "nan", "scale", "drain", "preempt")
MIB = 2**20
FREED_S = 60.0
"""Seconds within which Ray frees unreferenced objects."""


@dataclass(slots=True)
class Watched:
    """One process: its own memory in bytes and its open files, in each third of the time."""

    name: str
    bytes: list[list[int]] = field(default_factory=lambda: [[], [], []])
    files: list[list[int]] = field(default_factory=lambda: [[], [], []])

    def growth(self, what: list[list[int]]) -> float:
        """Return the relative growth from the middle third to the last, by their medians."""
        middle, last = (statistics.median(each) for each in what[1:])
        return last / middle - 1


def attacks(
    dice: random.Random, for_s: float, islands: tuple[str, ...]
) -> Iterator[tuple[float, str, str]]:
    """Yield times, kinds and victims of faults.

    As far as time allows, the first third has the nodes of two islands and each service twice.
    Islands are hit all the time.
    """
    early = [("node", island) for island in islands[:2]] + ENDING * 2
    times = [EVERY_S * n for n in range(1, int(for_s / EVERY_S))]
    for number, at_s in enumerate(times):
        if at_s < for_s / 3 - 2 * EVERY_S and number % 2 and early:
            yield (at_s, *early.pop(0))
        elif number % 5 == 4:
            yield (at_s, *dice.choice(PASSING))
        else:
            yield at_s, dice.choice(KINDS), dice.choice(islands)


CLIENT = """
import json, os, sys

answers = os.fdopen(os.dup(1), "w")  # of its own: what Ray prints is no answer
os.dup2(2, 1)
import ray
from ray._private.internal_api import node_stats

ray.init({address!r}, namespace={namespace!r}, log_to_driver=False, logging_level="ERROR")
for line in sys.stdin:
    method, argument = json.loads(line)
    try:
        if method == "objects":
            alive = [node for node in ray.nodes() if node["Alive"]]
            where = [(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in alive]
            stats = [node_stats(*each, include_memory_info=False).store_stats for each in where]
            said = [[each.num_local_objects, each.object_store_bytes_used,
                     each.object_store_bytes_primary_copy] for each in stats]
        else:
            fleet = ray.get_actor("fleet")
            said = ray.get(getattr(fleet, method).remote(argument), timeout=30)
        print(json.dumps([True, said]), file=answers, flush=True)
    except Exception as error:
        print(json.dumps([False, str(error)]), file=answers, flush=True)
"""


class Client:
    """One process for all questions to the cluster.

    A process per question would leave about 10 KB with the callee, which is not what is measured.
    """

    def __init__(self, cluster: Raylets) -> None:
        script = CLIENT.format(address=cluster.address, namespace=namespace_of(RUN))
        self._process = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=Path(__file__).parents[1],
            env=cluster.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, method: str, argument: object = None) -> tuple[bool, Any]:
        """Return whether the call succeeded, and its result or error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([method, argument]) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise AssertionError("the client has ended; what it said of it is above")
        done, said = json.loads(line)
        return done, said

    def objects(self) -> list[tuple[int, int, int]]:
        """Return for each node's object store: objects, their bytes, and those of first copies."""
        done, said = self.ask("objects")
        assert done, said
        return [tuple(each) for each in said]

    def close(self) -> None:
        self._process.communicate()


TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?P<frames>(?:[ \t]+.*\n)+)(?P<error>\S.*)$",
    re.MULTILINE,
)
OUR_FRAME = re.compile(r'File ".*/(?:archipelago|cluster|islands|coordinator)/\w')
EXPECTED = (
    "ray.exceptions.",  # raised by Ray where another process was killed
    "cluster.failures.",
    "coordinator.errors.",  # an answer of ours, logged with its origin
    "OSError: [Errno 27]",  # the disk that is full on purpose
    "OSError: [Errno 28]",
    "SystemExit",
)


def exceptions(folder: Path) -> Counter[str]:
    """Count the exceptions of our code, in all logs below a folder, that no fault explains."""
    found = Counter[str]()
    for path in folder.rglob("*"):
        if path.suffix not in (".err", ".out", ".log") or path.is_symlink() or not path.is_file():
            continue
        for match in TRACEBACK.finditer(path.read_text(errors="replace")):
            if OUR_FRAME.search(match["frames"]) and not match["error"].startswith(EXPECTED):
                last = OUR_FRAME.findall(match["frames"])
                print(f"{path.name}: {match[0][-1500:]}", flush=True)
                found[f"{match['error'][:150]} ({len(last)} frames of ours)"] += 1
    return found


@contextmanager
def hogs(count: int) -> Generator[None]:
    """Keep `count` cores busy with processes that compute nothing useful."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def strike(client: Client, kind: str, whom: str, islands: int) -> str:
    harm = {"kind": kind, "island": whom, "for_s": 3.0, "factor": 4.0}
    done, _ = client.ask("harm", harm)
    if kind == "drain":
        client.ask("scale", {"local": islands})
    return kind if done else "refused"


def look(cluster: Raylets, third: int, known: dict[int, Watched]) -> None:
    for pid, command in cluster.here.left_running().items():
        try:
            own_bytes = procfs.own_bytes(pid)
            files = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue  # it has just ended
        watched = known.setdefault(pid, Watched(command[:100]))
        watched.bytes[third].append(own_bytes)
        watched.files[third].append(files)


def zombies(cluster: Raylets, holder: int) -> set[str]:
    """Return ended processes that were not reaped, except raylets of `holder`."""
    ours, found = cluster.here.left_running(), set[str]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[0], int(rest.split()[1])
        if state == "Z" and parent in ours and parent != holder:
            found.add(f"{name}) of {ours[parent][:60]}")
    return found


def beyond_retention(run_dir: Path) -> list[str]:
    """Return the files of an ended run that exceed its retention."""
    config = load(run_dir / "config.toml")
    versions = Counter(
        path.name.split("-")[0] for path in (run_dir / "fragments").glob("f*.safetensors")
    )
    most = config.durability.keep_snapshots + 1  # the first is kept as well
    said = [f"{count} of fragment {name}" for name, count in versions.items() if count > most]
    return said + [str(path) for path in run_dir.rglob(".*") if path.is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--for", dest="for_s", type=float, default=1800.0, help="seconds")
    parser.add_argument("--seed", type=int, default=None, help="of the faults; a new one")
    parser.add_argument("--islands", type=int, default=3)
    parser.add_argument("--hogs", type=int, default=0)
    asked = parser.parse_args()
    seed = random.randrange(10**6) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    islands = tuple(f"local-{number}" for number in range(1, asked.islands))
    known, struck, wrong = dict[int, Watched](), Counter[str](), list[str]()
    looks = [0, 0, 0]
    with ExitStack() as stack:
        cluster, holder = stack.enter_context(up())
        client = stack.enter_context(closing(Client(cluster)))
        stack.enter_context(hogs(asked.hogs))
        submitted = cluster.run(
            "submit", str(TINY), "--address", cluster.jobs, "--no-wait",
            "--set", f"run.name={RUN}", "--set", "run.steps=100000000",
            "--set", f"islands.0.count={asked.islands}", "--set", "islands.0.spares=1",
            "--set", "islands.0.speed=0.15", "--set", "faults.policy.deaths=1000",
        )  # fmt: skip
        assert submitted.code == 0, submitted.err
        cluster.until_contributing("local-0", *islands)
        began_s, plan = time.monotonic(), attacks(random.Random(seed), asked.for_s, islands)
        at_s, kind, whom = next(plan)
        counts: list[int] = []
        while (now_s := time.monotonic() - began_s) < asked.for_s:
            third = min(2, int(3 * now_s / asked.for_s))
            look(cluster, third, known)
            looks[third] += 1
            if now_s >= at_s:
                struck[strike(client, kind, whom, asked.islands)] += 1
                at_s, kind, whom = next(plan, (float("inf"), "", ""))
                if sum(struck.values()) % 10 == 0:
                    counts.append(sum(count for count, _, _ in client.objects()))
                    print(f"{now_s:.0f} s: {dict(struck)}, {counts[-1]} objects, "
                          f"{cluster.last['merges']} merges", flush=True)  # fmt: skip
            time.sleep(LOOK_S)
        before, merges = zombies(cluster, holder.pid), cluster.last["merges"]
        until(lambda: cluster.last["merges"] > merges + 5, WITHIN_S)
        wrong += [f"zombie: {each}" for each in before & zombies(cluster, holder.pid)]
        assert cluster.ask("stop").code == 0
        until((cluster.run_dir / "summary.json").exists, WITHIN_S)
        summary = json.loads((cluster.run_dir / "summary.json").read_text())
        until(lambda: held(cluster) == ([], 0), WITHIN_S)
        try:
            until(lambda: not any(count for count, _, _ in client.objects()), FREED_S)
        except AssertionError:
            wrong.append(
                f"left in the object stores (objects, bytes, first copies): {client.objects()}"
            )
        wrong += beyond_retention(cluster.run_dir)
        wrong += [
            f"{count} times {error}" for error, count in exceptions(cluster.here.folder).items()
        ]
        fates = ("merged", "discarded", "lost", "outstanding")
        if summary["tokens_trained"] != sum(summary[f"tokens_{fate}"] for fate in fates):
            wrong.append("the tokens do not add up")
    for pid, each in sorted(known.items()):
        if [len(each.bytes[1]), len(each.bytes[2])] != looks[1:]:
            continue  # it did not live through both
        grew, files = each.growth(each.bytes), each.growth(each.files)
        middle, last = (statistics.median(each.bytes[third]) / MIB for third in (1, 2))
        print(
            f"{pid:>7} {middle:8.1f} -> {last:8.1f} MiB {grew:+7.2%}, files {files:+.1%}",
            each.name,
        )
        if grew > FLAT:
            wrong.append(f"the memory of {pid} ({each.name}) grew by {grew:.1%}")
        if files > FLAT and "ray::" in each.name:  # Ray's log monitor opens files of dead processes
            wrong.append(f"the open files of {pid} ({each.name}) grew by {files:.1%}")
    print(f"{asked.for_s:.0f} s, {dict(struck)}, objects on the way {counts}, {summary}")
    print("\n".join(wrong) or "nothing grew, nothing is left")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
