"""Environment variables of a process that computes; set before it starts or imports JAX."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from cluster.config.schema import Machines

CPU_ENV = {"JAX_PLATFORMS": "cpu"}
ACCELERATOR_ENV = {"JAX_PLATFORMS": ""}
"""The empty value lets JAX choose.

The process that starts Ray here restricts itself to its CPU, and Ray's processes would inherit
that.
"""
KEEP_PAGES = {
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
}
"""Settings of glibc's malloc that keep freed pages.

XLA on a CPU frees large buffers each step, and a shard at each merge. Without these settings the
next step or merge would pay for page faults.
"""
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""Flags of XLA for one thread: another number of threads sums in another order.

The last bits of the results then differ.
"""


STALE_ADDRESSES = (
    "MEGASCALE_COORDINATOR_ADDRESS",
    "MEGASCALE_PORT",
    "MEGASCALE_NUM_SLICES",
    "MEGASCALE_SLICE_ID",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "JAX_LOCAL_DEVICE_IDS",
)
"""Variables that name the other processes of one JAX program.

A node inherits them from its pod or from an earlier job. After a preemption they name a slice that
never comes back, and JAX would wait for it (ray#62893). An island is one slice with a program of
its own, whose addresses are arguments (`cluster.hosts.gang.enter`).
"""


def drop_stale_addresses() -> None:
    """Remove inherited addresses of other JAX programs; call it before JAX is imported.

    An empty value would not do: JAX and libtpu only look whether the variable is there.
    """
    for name in STALE_ADDRESSES:
        os.environ.pop(name, None)


def give_pages_back() -> None:
    """Return unused pages of this process to the system; without glibc this is a no-op."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def devices_of_cpus(count: int) -> str:
    """Return the flag of XLA for `count` devices in a process that computes on its CPUs.

    This flag must come first: XLA stops reading at the part of `ONE_THREAD` that is not one of its
    own flags.
    """
    return f"--xla_force_host_platform_device_count={count}"


def keep_compiled() -> dict[str, str]:
    """Return the settings that keep compiled code for the next process."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(Path.home() / ".cache" / "archipelago" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # the many small programs cost most
    }


def environment_of(machines: Machines) -> dict[str, str]:
    """Return the environment of a process of one of these hosts."""
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
    """Compute on one thread in this process and its children, as an island with one CPU does.

    Variables that are already set in the environment are kept.
    """
    for name, value in {**KEEP_PAGES, **keep_compiled(), "XLA_FLAGS": ONE_THREAD}.items():
        os.environ.setdefault(name, value)
