"""What a process that computes has in its environment: said before it starts, or imports JAX."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from cluster.config.schema import Machines

CPU_ENV = {"JAX_PLATFORMS": "cpu"}
ACCELERATOR_ENV = {"JAX_PLATFORMS": ""}
"""JAX chooses. The process that starts Ray here restricts itself to its CPU, and Ray's processes
would inherit that."""
KEEP_PAGES = {
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
}
"""For glibc: XLA on a CPU frees large buffers each step, and a shard at each merge, which would be
page faults at the next."""
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""Of XLA. Another number of threads adds in another order, and gives other last bits."""


def give_pages_back() -> None:
    """Let go of the pages that this process has kept and does not use; nothing without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def devices_of_cpus(count: int) -> str:
    """A flag of XLA: so many devices in a process that computes on its CPUs. It comes first: XLA
    reads no further than the part of `ONE_THREAD` that is no flag of its own."""
    return f"--xla_force_host_platform_device_count={count}"


def keep_compiled() -> dict[str, str]:
    """What is compiled once is kept for the next process."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(Path.home() / ".cache" / "archipelago" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # the many small ones cost most
    }


def environment_of(machines: Machines) -> dict[str, str]:
    """What the process of one of these hosts has."""
    env = keep_compiled()
    if machines.on_cpu:
        env |= CPU_ENV | KEEP_PAGES
        count = (machines.mesh.devices or machines.hosts) // machines.hosts
        flags = [devices_of_cpus(count)] if count > 1 else []
        flags += [ONE_THREAD] if machines.devices.get("CPU", 0.0) <= 1 else []
        env |= {"XLA_FLAGS": " ".join(flags)} if flags else {}
    else:
        env |= ACCELERATOR_ENV
    return env


def take_one_thread() -> None:
    """Compute on one thread in this process and those that it starts, as an island of one CPU does;
    unless its environment says otherwise."""
    for name, value in {**KEEP_PAGES, **keep_compiled(), "XLA_FLAGS": ONE_THREAD}.items():
        os.environ.setdefault(name, value)
