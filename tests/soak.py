"""A soak: a submitted run under faults of all kinds, and what grows that should not.

`make soak`, or `python -m tests.soak --for 600`. Faults that end a service come in the first third,
so that whoever lives through the other two can be compared: the memory of its own (anonymous pages)
in the last third against the middle one. Local-0 is let alone. At the end: objects, placement
groups, zombies, and files beyond what the retention says.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cluster.bench import procfs
from cluster.config.load import load
from tests.live.cli import TINY, until
from tests.live.test_cluster import RUN, WITHIN_S, Raylets, held, told, up

FLAT = 0.03
EVERY_S, LOOK_S = 12.0, 5.0
ISLANDS = ("local-1", "local-2")
ENDING = [("kill", whom) for whom in ("syncer", "shard-0", "evaluator", "fleet")]
PASSING = [("stop", "syncer"), ("disk", "syncer"), ("stop", "shard-0"), ("disk", "shard-0")]
KINDS = ("kill", "kill", "stop", "slow", "cut", "nan", "scale", "drain")
MIB = 2**20


@dataclass(slots=True)
class Watched:
    """One process: its own memory in bytes, and its open files, each third of the time."""

    name: str
    bytes: list[list[int]] = field(default_factory=lambda: [[], [], []])
    files: list[list[int]] = field(default_factory=lambda: [[], [], []])

    def growth(self, what: list[list[int]]) -> float:
        """Of the last third against the middle one; of each the median."""
        middle, last = (statistics.median(each) for each in what[1:])
        return last / middle - 1


def attacks(dice: random.Random, for_s: float) -> Iterator[tuple[float, str, str]]:
    """When, which kind, whom: a node once, each service at least once, islands all the time."""
    early = [("node", island) for island in ISLANDS] + ENDING * 2
    times = [EVERY_S * n for n in range(1, int(for_s / EVERY_S))]
    for number, at_s in enumerate(times):
        if at_s < for_s / 3 - 2 * EVERY_S and number % 2 and early:
            yield (at_s, *early.pop(0))
        elif number % 5 == 4:
            yield (at_s, *dice.choice(PASSING))
        else:
            yield at_s, dice.choice(KINDS), dice.choice(ISLANDS)


def strike(cluster: Raylets, kind: str, whom: str) -> str:
    plan = cluster.here.folder / "plan.toml"
    what = {"after_s": 0.0, "kind": kind, "island": whom, "for_s": 3.0, "factor": 4.0}
    lines = [f"{name} = {json.dumps(value)}" for name, value in what.items()]
    plan.write_text("\n".join(["[[faults]]", *lines]))
    done = cluster.ask("chaos", "--plan", str(plan), "--json")
    if kind == "drain":
        cluster.ask("scale", "local=3")
    faults = json.loads(done.out)["faults"] if done.code == 0 else []
    return "refused" if not faults or faults[0]["refused"] else kind


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
    """Processes that have ended and that nobody has waited for, `holder`'s raylets aside."""
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


def objects(cluster: Raylets) -> int:
    """In the object stores of all nodes, by Ray's own count; which ones is on standard error."""
    script = (
        "import ray, sys\n"
        "from ray._private.internal_api import memory_summary\n"
        f"ray.init({cluster.address!r}, log_to_driver=False)\n"
        "print(memory_summary(stats_only=True))\n"
        "print(memory_summary(), file=sys.stderr)\n"
    )
    done = told(cluster, script)
    found = re.search(r"Plasma memory usage \d+ MiB, (\d+) objects", done.stdout)
    assert found is not None, done.stdout
    (cluster.here.folder / "objects.txt").write_text(done.stderr)
    return int(found[1])


def beyond_retention(run_dir: Path) -> list[str]:
    """Files of a run that is over which nothing says should be there."""
    config = load(run_dir / "config.toml")
    versions = Counter(
        path.name.split("-")[0] for path in (run_dir / "fragments").glob("f*.safetensors")
    )
    most = config.durability.keep_snapshots + 1  # and the first
    said = [f"{count} of fragment {name}" for name, count in versions.items() if count > most]
    return said + [str(path) for path in run_dir.rglob(".*") if path.is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--for", dest="for_s", type=float, default=1800.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    known, struck, wrong = dict[int, Watched](), Counter[str](), list[str]()
    looks = [0, 0, 0]
    with up() as (cluster, holder):
        submitted = cluster.run(
            "submit", str(TINY), "--address", cluster.jobs, "--no-wait",
            "--set", f"run.name={RUN}", "--set", "run.steps=100000000",
            "--set", "islands.0.count=3", "--set", "islands.0.spares=1",
            "--set", "islands.0.speed=0.15", "--set", "faults.policy.deaths=1000",
        )  # fmt: skip
        assert submitted.code == 0, submitted.err
        cluster.until_contributing("local-0", *ISLANDS)
        began_s, plan = time.monotonic(), attacks(random.Random(asked.seed), asked.for_s)
        at_s, kind, whom = next(plan)
        counts: list[int] = []
        while (now_s := time.monotonic() - began_s) < asked.for_s:
            third = min(2, int(3 * now_s / asked.for_s))
            look(cluster, third, known)
            looks[third] += 1
            if now_s >= at_s:
                struck[strike(cluster, kind, whom)] += 1
                at_s, kind, whom = next(plan, (float("inf"), "", ""))
                if sum(struck.values()) % 10 == 0:
                    counts.append(objects(cluster))
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
        if (left := objects(cluster)) != 0:
            said = (cluster.here.folder / "objects.txt").read_text()
            wrong.append(f"{left} objects left:\n{said}")
        wrong += beyond_retention(cluster.run_dir)
        fates = ("merged", "discarded", "lost", "outstanding")
        if summary["tokens_trained"] != sum(summary[f"tokens_{fate}"] for fate in fates):
            wrong.append("the tokens do not add up")
    for pid, each in sorted(known.items()):
        if [len(each.bytes[1]), len(each.bytes[2])] != looks[1:]:
            continue  # it has not lived through both
        grew, files = each.growth(each.bytes), each.growth(each.files)
        middle, last = (statistics.median(each.bytes[third]) / MIB for third in (1, 2))
        print(
            f"{pid:>7} {middle:8.1f} -> {last:8.1f} MiB {grew:+7.2%}, files {files:+.1%}",
            each.name,
        )
        if grew > FLAT:
            wrong.append(f"the memory of {pid} ({each.name}) grew by {grew:.1%}")
        if files > FLAT and "ray::" in each.name:  # Ray's log monitor opens those of the dead
            wrong.append(f"the open files of {pid} ({each.name}) grew by {files:.1%}")
    print(f"{asked.for_s:.0f} s, {dict(struck)}, objects on the way {counts}, {summary}")
    print("\n".join(wrong) or "nothing grew, nothing is left")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
