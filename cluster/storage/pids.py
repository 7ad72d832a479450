"""Is a process of this machine still there, and the one that is meant?"""

from __future__ import annotations

import os
from pathlib import Path


def born(pid: int) -> int | None:
    """When this process began, in ticks since its machine was started; None if that is not told."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


def is_alive(pid: int, began: int | None) -> bool:
    """True if the process exists, is no zombie, and its number has not been reused: it began when
    `began` says."""
    if began is not None and born(pid) not in (began, None):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True  # a system without /proc, or one that hides others
