"""A syncer and shards on an embedded Ray, and nothing else, for the benchmarks of the system.

There is no fleet and no evaluator. A benchmark that needs the status queries and the evaluations of
a real run uses `Onlookers`.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from archipelago.lab.bench import procfs, stub_actor
from cluster.actors.call_errors import answer
from cluster.actors.start import Home, start_evaluator, start_shard, start_syncer
from cluster.config.schema import Config
from cluster.fleet.placement import hosts
from cluster.fleet.ray_backend import cluster_nodes
from cluster.launch.ray_cluster import Stores, cluster_of
from cluster.names import group_name, shards_of
from cluster.status import RunStatus
from cluster.storage.files import Lines, json_text
from cluster.storage.metrics_log import LOOKS
from coordinator.errors import Unreachable
from coordinator.fragments import Flat, Layout

RUN = "bench"
"""The name of the run."""
START_S = 300.0
"""Seconds within which a process must have imported and compiled what it needs."""


@dataclass(frozen=True, slots=True)
class BenchStage:
    """A running syncer with its shards."""

    config: Config
    layout: Layout
    home: Home
    syncer: Any
    """The handle of the syncer."""
    syncer_pid: int
    """The process id of the syncer."""
    shard_pids: list[int]
    """The process ids of the shards."""
    run_dir: Path

    def status(self) -> RunStatus:
        """Return the status of the run."""
        return answer(self.syncer.status.remote())

    def cpu_s(self) -> tuple[float, float]:
        """Return the CPU seconds of the syncer, and of all shards together."""
        return procfs.cpu_s(self.syncer_pid), sum(procfs.cpu_s(pid) for pid in self.shard_pids)


@contextmanager
def staged(
    config: Config,
    layout: Layout,
    flats: Sequence[Flat],
    address: str | None = None,
    shard_labels: Mapping[str, str] | None = None,
) -> Generator[BenchStage]:
    """Start a syncer and shards with this model, and end them with the block.

    `address` is that of a Ray cluster; None starts an embedded one. `shard_labels`: the labels of
    the nodes for the shards, as in `sync.shard_labels`; None: this process's node.
    """
    with TemporaryDirectory(prefix="archipelago-bench-") as folder, redirect_stdout(sys.stderr):
        run_dir, home = Path(folder), Home(RUN, detached=False)
        with cluster_of(config, address, RUN, Stores.of(config, layout)):
            logging.getLogger("ray").setLevel(logging.ERROR)
            held = shards_of(config.sync.shards, config.sync.fragments)
            nodes = [] if shard_labels is None else hosts(shard_labels, cluster_nodes())
            shards = [
                start_shard(config, name, home, run_dir, node)
                for name, node in zip(held, cycle(nodes or [None]), strict=False)
            ]
            for shard, fragments in zip(shards, held.values(), strict=True):
                for p in fragments:
                    answer(shard.seed.remote(layout, p, flats[p]), START_S)
            yield _opened(config, layout, home, run_dir, shards)


@contextmanager
def back_on_stage(config: Config, layout: Layout, run_dir: Path) -> Generator[BenchStage]:
    """Restart a run from the files in its directory, and end it with the block."""
    home, need = Home(RUN, detached=False), Stores.of(config, layout)
    with redirect_stdout(sys.stderr), cluster_of(config, "local", RUN, need):
        logging.getLogger("ray").setLevel(logging.ERROR)
        names = shards_of(config.sync.shards, config.sync.fragments)
        shards = [start_shard(config, name, home, run_dir) for name in names]
        yield _opened(config, layout, home, run_dir, shards)


def _opened(
    config: Config, layout: Layout, home: Home, run_dir: Path, shards: Sequence[Any]
) -> BenchStage:
    """Start the syncer, wait until it is open, and return the stage."""
    syncer = start_syncer(config, RUN, home, run_dir)
    end_s = time.monotonic() + START_S
    while True:  # on a busy machine the shards take longer than the syncer's patience
        try:
            answer(syncer.open.remote(layout), START_S)
            break
        except Unreachable:
            if time.monotonic() > end_s:
                raise
    pids = [answer(stub_actor.pid_of(actor)) for actor in (syncer, *shards)]
    return BenchStage(config, layout, home, syncer, pids[0], pids[1:], run_dir)


class Onlookers:
    """The evaluator of a run, and a thread that does the periodic work of a fleet.

    The thread asks for the status, writes it as a line of JSON, and has the model evaluated from
    time to time.
    """

    def __init__(self, stage: BenchStage) -> None:
        self._stage = stage
        self._evaluator = start_evaluator(stage.config, stage.home)
        answer(self._evaluator.judge.remote(), START_S)  # wait until it is compiled

    @contextmanager
    def looking(self) -> Generator[None]:
        """Run the thread while the block lasts.

        Errors: the error that broke the thread.
        """
        stop = threading.Event()
        with ThreadPoolExecutor(1, "look") as pool:
            looks = pool.submit(self._look, stop)
            try:
                yield
            finally:
                stop.set()
            looks.result()

    def _look(self, enough: threading.Event) -> None:
        """Ask for the status at every refresh, and for an evaluation at its interval."""
        monitor, stage = self._stage.config.monitor, self._stage
        held = {island: group_name(island) for island in stage.config.island_names}
        judged_s, judgement = -math.inf, None
        with TemporaryDirectory() as folder, closing(Lines(Path(folder) / LOOKS)) as lines:
            while not enough.wait(monitor.refresh_s):
                _, status = answer(stage.syncer.look.remote(held))
                lines.write(json_text(status))
                if time.monotonic() - judged_s >= monitor.evaluate_every_s:
                    if judgement is not None:
                        answer(judgement)
                    judged_s, judgement = time.monotonic(), self._evaluator.judge.remote()
