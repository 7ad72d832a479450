"""A model of a billion parameters on one machine, handled fragment by fragment.

It is started, merged and written, and its shard is killed and restarted. The test needs the machine
to itself, and 20 GiB of it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from archipelago.lab.bench.embedded_core import BenchStage, staged
from archipelago.lab.bench.joins import Peaks, idle_shard_bytes, killed_shard
from archipelago.lab.bench.memory import shard_terms, total
from archipelago.lab.bench.stub_actor import pid_of, start_crew
from archipelago.lab.bench.stub_material import Material, StubPace
from cluster.actors.call_errors import answer
from cluster.config.load import parse
from cluster.config.rule import schedule_of
from cluster.config.schema import Config
from cluster.names import SHARD
from cluster.storage.model_file import ModelFiles, fingerprint
from coordinator.fragments import Flat, Layout, Leaf, cut
from coordinator.protocol import Fragment, Island
from islands.own_wire import built_in

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(2400)]
FRAGMENTS, SIDE = 64, 3953
LEARNERS = 2
STEP_S = 2.0
WITHIN_S = 900.0
GIB = 2**30
PART_BYTES = 10**9
ROOM_BYTES = 20 * GIB, 20 * GIB
"""The bytes of memory and of disk that must be free."""


class Drawn(Sequence[Flat]):
    """Fragments of the initial model; each is drawn on access."""

    def __init__(self, layout: Layout) -> None:
        self._sizes = layout.sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, p: Any) -> Any:
        return np.random.default_rng(p).standard_normal(self._sizes[p], np.float32)


def config_of() -> Config:
    tables = {
        "run": {"steps": 10**9},
        "task": {"preset": "byte-tiny"},  # never built, because the learners are light
        "sync": {
            "every": FRAGMENTS, "fragments": FRAGMENTS, "wire_up": "int4", "wire_down": "int4",
        },
        "durability": {"every": 1},  # else public versions die with the shard, and all rejoin
        "islands": [{"group": "crew", "count": LEARNERS, "resources": {"CPU": 0.0}}],
    }  # fmt: skip
    return parse(tables, origin="test", overrides=())


def material_of(config: Config, layout: Layout) -> Material:
    """Return material in which each step adds the same values to every fragment.

    All fragments have one size; there is no memory for a second model.
    """
    one = np.random.default_rng(7).standard_normal(layout.sizes[0], np.float32) * np.float32(1e-3)
    assert len(set(layout.sizes)) == 1
    return Material(
        layout=layout,
        schedule=schedule_of(config),
        wire=built_in(config.sync.wire_up),
        deltas=(one,) * FRAGMENTS,
        windows=8,
        tokens=1024,
        lease_windows=config.data.lease_windows,
    )


def wait(what: str, done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WITHIN_S
    while not done():
        assert time.monotonic() < end_s, f"not within {WITHIN_S:g} s: {what}"
        time.sleep(1.0)


def merges(stage: BenchStage) -> int:
    return stage.status()["merges"]


def written(stage: BenchStage, folder: Path) -> str:
    """Write the model's files as at the end of a run, and return their fingerprint."""
    shard: Any = ray.get_actor(SHARD, namespace=stage.home.namespace)
    files = ModelFiles(folder, stage.layout, PART_BYTES)
    for p in range(FRAGMENTS):
        ((version, flat),) = answer(shard.whole.remote([Fragment(p)]), WITHIN_S)
        files.add(version, flat)
    files.publish()
    return files.fingerprint


def test_a_billion_parameters_go_fragment_by_fragment(tmp_path: Path) -> None:
    memory = os.sysconf("SC_AVPHYS_PAGES") + _cached_pages()
    if memory * os.sysconf("SC_PAGE_SIZE") < ROOM_BYTES[0]:
        pytest.skip("needs 20 GiB of free memory")
    if shutil.disk_usage(tmp_path).free < ROOM_BYTES[1]:
        pytest.skip("needs 20 GiB of disk")
    config = config_of()
    leaves = [Leaf(f"block-{p:02}", (SIDE, SIDE)) for p in range(FRAGMENTS)]
    layout = cut(leaves, FRAGMENTS)
    assert layout.parameters > 1e9
    began_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began_s:.0f} s: {what}", flush=True)

    with staged(config, layout, Drawn(layout)) as stage, Peaks() as peaks:
        peaks.of |= {
            "this": [os.getpid()], "syncer": [stage.syncer_pid], "shard": stage.shard_pids,
        }  # fmt: skip
        say("started")
        crew = start_crew(config, Island("crew-0"), stage.home)
        peaks.of["crew"] = [answer(pid_of(crew), WITHIN_S)]
        islands = [Island(f"crew-0.{n}") for n in range(LEARNERS)]
        answer(crew.board.remote(islands, material_of(config, layout), StubPace(STEP_S)), WITHIN_S)
        wait("they step", lambda: stage.status()["alive"] == LEARNERS)
        say("they step")
        wait("twice as many merges as fragments", lambda: merges(stage) >= 2 * FRAGMENTS)
        merged = peaks.seen()
        idle = idle_shard_bytes(stage)
        formula = idle + total(shard_terms(config, layout))
        say(
            f"{merges(stage)} merges; {_told(merged)}, the shard by its formula {formula / GIB:.2f}"
        )
        assert merged["shard"] <= 1.1 * formula
        say(f"the shard is back {killed_shard(stage):.0f} s after its end")
        again = merges(stage) + FRAGMENTS // 4
        peaks.of["shard again"] = [
            answer(pid_of(ray.get_actor(SHARD, namespace=stage.home.namespace)), WITHIN_S)
        ]
        wait("they go on", lambda: merges(stage) >= again)
        answer(stage.syncer.stop.remote("test"))
        wait("the last rounds", lambda: stage.status()["phase"] == "finished")
        sha256 = written(stage, tmp_path)
        say(f"written; {_told(peaks.seen())}")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * layout.parameters
    assert len({*index["weight_map"].values()}) > 3
    assert sha256 != fingerprint(Drawn(layout))
    seen = peaks.seen()
    assert seen["shard again"] <= 1.1 * formula
    others = {name: nbytes for name, nbytes in seen.items() if "shard" not in name}
    assert max(others.values()) < GIB, _told(others)


def _told(nbytes: dict[str, int]) -> str:
    return ", ".join(f"{name} {each / GIB:.2f} GiB" for name, each in nbytes.items())


def _cached_pages() -> int:
    """Return the pages of the file cache, which the kernel frees on demand."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (kib,) = [int(line.split()[1]) for line in lines if line.startswith("Cached:")]
    return kib * 1024 // os.sysconf("SC_PAGE_SIZE")
