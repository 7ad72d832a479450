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
from cluster.remote import answer
from cluster.status import Status
from coordinator.fragments import Flat, Layout

RUN = "bench"


@dataclass(frozen=True, slots=True)
class Stage:
    """The actors, by their handles; `syncer_pid`: the number of the syncer's process."""

    config: Config
    layout: Layout
    run_dir: Path
    home: actors.Home
    syncer: Any
    shard: Any
    syncer_pid: int
    shard_pid: int

    def status(self) -> Status:
        return answer(self.syncer.status.remote())

    def syncer_cpu_s(self) -> float:
        return meter.cpu_s(self.syncer_pid)


@contextmanager
def staged(
    config: Config, layout: Layout, flats: Sequence[Flat], need_bytes: int
) -> Generator[Stage]:
    """Everything is ended with the block; `need_bytes`: in the object store at once."""
    with TemporaryDirectory(prefix="archipelago-bench-") as folder, redirect_stdout(sys.stderr):
        run_dir, home = Path(folder), actors.Home(RUN, detached=False)
        with launch.cluster_of(config, "local", RUN, need_bytes):
            logging.getLogger("ray").setLevel(logging.ERROR)
            shard = actors.start_shard(config, home, run_dir)
            syncer = actors.start_syncer(config, RUN, home, run_dir)
            answer(shard.seed.remote(layout, list(flats)))
            answer(syncer.open.remote(layout))
            pids = [answer(crew.pid_of(actor)) for actor in (syncer, shard)]
            yield Stage(config, layout, run_dir, home, syncer, shard, *pids)
