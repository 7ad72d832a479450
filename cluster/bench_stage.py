"""A syncer and a shard on an embedded Ray, and nobody else: what benches of the system stand on.

No fleet and no evaluator: who asks for a status each half second, and who judges the model, is no
part of what is measured.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster import actors, crew, launch, meter
from cluster.config import Config
from cluster.names import shards_of
from cluster.remote import answer
from cluster.status import Status
from coordinator.fragments import Flat, Layout

RUN = "bench"


@dataclass(frozen=True, slots=True)
class Stage:
    """The syncer's handle, and the numbers of its process and of the shards'."""

    config: Config
    layout: Layout
    home: actors.Home
    syncer: Any
    syncer_pid: int
    shard_pids: list[int]

    def status(self) -> Status:
        return answer(self.syncer.status.remote())

    def cpu_s(self) -> tuple[float, float]:
        """Of the syncer, and of all shards."""
        return meter.cpu_s(self.syncer_pid), sum(meter.cpu_s(pid) for pid in self.shard_pids)


@contextmanager
def staged(
    config: Config, layout: Layout, flats: Sequence[Flat], need_bytes: int
) -> Generator[Stage]:
    """Everything is ended with the block; `need_bytes`: in the object store at once."""
    with TemporaryDirectory(prefix="archipelago-bench-") as folder, redirect_stdout(sys.stderr):
        run_dir, home = Path(folder), actors.Home(RUN, detached=False)
        with launch.cluster_of(config, "local", RUN, need_bytes):
            logging.getLogger("ray").setLevel(logging.ERROR)
            held = shards_of(config.sync.shards, config.sync.fragments)
            shards = [actors.start_shard(config, name, home, run_dir) for name in held]
            syncer = actors.start_syncer(config, RUN, home, run_dir)
            for shard, own in zip(shards, held.values(), strict=True):
                answer(shard.seed.remote(layout, {p: flats[p] for p in own}))
            answer(syncer.open.remote(layout))
            pids = [answer(crew.pid_of(actor)) for actor in (syncer, *shards)]
            yield Stage(config, layout, home, syncer, pids[0], pids[1:])
