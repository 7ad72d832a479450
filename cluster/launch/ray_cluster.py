"""A Ray cluster for a run: an embedded one, or one that is there already."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import ray

from cluster.config.schema import Config
from cluster.launch.connect import connect
from coordinator.errors import RunFailed, UserMistake
from coordinator.fragments import Layout

RAY_SETTINGS = {
    "RAY_object_manager_pull_timeout_ms": "120000",  # else slow links get each object twice
    "RAY_timeout_ms_task_wait_for_death_info": "100",  # else 2 s until a caller hears of a death
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
STORE_FLOOR_BYTES = 128 * 2**20
"""The smallest object store that an embedded Ray is given."""
STORE_SLACK = 1.5
"""Of what must be in the object store at once, so much is asked for."""


def store_bytes(config: Config, layout: Layout) -> int:
    """What the object store must hold at once, in bytes.

    Each learner that joins reads the model whole in f32; a round keeps one contribution of each
    learner and one publication.
    """
    learners, model = len(config.island_names), 4 * layout.parameters
    largest = max(layout.sizes)
    up, down = config.sync.wire_up.bytes_of(largest), config.sync.wire_down.bytes_of(largest)
    rounds = 2 * (learners * up + down)
    return math.ceil(STORE_SLACK * (learners * model + rounds))


@contextmanager
def cluster_of(
    config: Config, address: str | None, namespace: str, need_bytes: int
) -> Generator[str]:
    """A Ray cluster to run on: an embedded one, ended with the block, or one that is there already.

    Errors: `UserMistake` if it cannot be reached, or has no room; `RunFailed` if an embedded one
    does not start.
    """
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address in (None, "local"):
        cpus = sum((g.count + g.spares) * g.devices.get("CPU", 0.0) for g in config.islands)
        cpus += config.monitor.evaluate_on.get("CPU", 0.0)
        _fits_here(need_bytes)
        try:
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, math.ceil(cpus)),
                resources=_other_resources(config),
                include_dashboard=config.monitor.dashboard,
                object_store_memory=max(STORE_FLOOR_BYTES, need_bytes),
                namespace=namespace,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # Ray has none narrower for "not within 30 s"
            reason = str(error).strip() or repr(error)
            raise RunFailed(
                f"Ray does not start here: {reason}; is the machine very busy, or short of memory?"
            ) from error
    else:
        connect(address, namespace)
        room = ray.cluster_resources().get("object_store_memory", 0.0)
        if room < need_bytes:
            ray.shutdown()
            raise UserMistake(
                f"no room in the object store of {address}: {need_bytes / 2**20:.0f} MiB are "
                f"needed, it has {room / 2**20:.0f} MiB; start Ray with --object-store-memory, "
                "or use more fragments or fewer islands"
            )
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def _other_resources(config: Config) -> dict[str, float]:
    """Custom resources of an embedded Ray, which has just what its islands and its evaluator ask
    for."""
    wanted: dict[str, float] = {}
    asked = [(g.count + g.spares, g.devices) for g in config.islands]
    for times, devices in [*asked, (1, config.monitor.evaluate_on)]:
        for name, amount in devices.items():
            if name not in ("CPU", "GPU", "memory", "object_store_memory"):
                wanted[name] = wanted.get(name, 0.0) + times * amount
    return wanted


def _fits_here(need_bytes: int) -> None:
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free if shared.exists() else need_bytes
    if free < need_bytes:
        raise UserMistake(
            f"no room in the object store: {need_bytes / 2**20:.0f} MiB of shared memory are "
            f"needed and {shared} has {free / 2**20:.0f} MiB free; give it more "
            "(docker run --shm-size=...), or use more fragments or fewer islands"
        )
