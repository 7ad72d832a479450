"""Checks whether a process of this machine is alive, and whether it is the one that is meant."""

from __future__ import annotations

import os
from pathlib import Path


def born(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the machine started; None if unknown."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


def is_alive(pid: int, began: int | None) -> bool:
    """Return whether the process exists, is no zombie, and is not another one with its number.

    `began`: when it was born, None if unknown; a process that was born at another time is another
    one.
    """
    if began is not None and born(pid) not in (began, None):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to another user
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True  # a system without /proc, or one that hides others
