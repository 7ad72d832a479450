"""CPU time and memory of processes on this machine, read from /proc; Linux only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from coordinator.errors import UserMistake

PROC = Path("/proc")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""Seconds of one tick of the kernel's CPU accounting."""
KIB = 2**10
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of the process; 0 if it is gone."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) * TICK_S if fields else 0.0


def rss_bytes(pid: int) -> int:
    """Return the resident memory of the process, shared pages included."""
    return int((PROC / str(pid) / "statm").read_text().split()[1]) * PAGE_BYTES


def peak_bytes(pid: int) -> int:
    """Return the highest resident memory that the process has had, shared pages included."""
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    (kib,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(kib) * KIB


def own_bytes(pid: int) -> int:
    """Return the resident anonymous memory of the process.

    This excludes files and shared memory, and so the pages of an object store that it has mapped.

    Errors: `OSError` if the process is gone, or belongs to another user.
    """
    rollup = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    (kib,) = [line.split()[1] for line in rollup if line.startswith("Anonymous:")]
    return int(kib) * KIB


def family(root: int) -> dict[int, float]:
    """Return the CPU seconds of the process and of all its descendants, by process id.

    Errors: `UserMistake` where there is no /proc.
    """
    if not (PROC / "self" / "stat").exists():
        raise UserMistake("CPU seconds are read off /proc, which this system has not: Linux only")
    parents: dict[int, int] = {}
    for entry in PROC.glob("[0-9]*"):
        if fields := _stat(int(entry.name)):
            parents[int(entry.name)] = int(fields[1])
    found = {root}
    while children := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= children
    return {pid: cpu_s(pid) for pid in found}


def used_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return the CPU seconds between two snapshots of a family.

    A process that ended between them is not counted.
    """
    return sum(max(0.0, after[pid] - before.get(pid, 0.0)) for pid in after)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, from the state on; empty if gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
