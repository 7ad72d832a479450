"""Recognition of files that another command reads, where the configuration of a run is needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

CLUSTER_TABLES = frozenset({"regions", "groups", "training", "objective", "recovery", "syncer"})
"""The tables of a cluster file; a run's configuration has none of them."""
STUDY_TABLES = frozenset({"study", "axes", "arms"})
"""The tables of a study that are not its base, which is the configuration of a run."""


def other_command(path: object, tables: Mapping[str, Any]) -> str | None:
    """Return what this file is and the command that reads it; None if it may configure a run."""
    if found := tables.keys() & STUDY_TABLES:
        return _message(path, "a study", found, f"to train it use `archipelago study {path}`")
    if tables and tables.keys() <= CLUSTER_TABLES:
        commands = (
            f"to plan for it use `archipelago plan {path}`, to simulate it "
            f"`archipelago simulate {path}`"
        )
        return _message(path, "a cluster file", tables, commands)
    if {*tables} == {"faults"} and isinstance(tables["faults"], list):
        command = f"to inject its faults into a live run use `archipelago chaos RUN --plan {path}`"
        return _message(path, "a fault plan", tables, command)
    return None


def _message(path: object, kind: str, found: Collection[str], commands: str) -> str:
    shown = ", ".join(f"[{name}]" for name in sorted(found))
    return f"{path} is {kind}, with {shown}, where a run's configuration is needed; {commands}"
