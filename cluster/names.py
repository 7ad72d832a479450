"""What a run's actors are called, in the namespace of the run."""

from __future__ import annotations

from coordinator.protocol import Island

FLEET, SYNCER, SHARD, EVALUATOR = "fleet", "syncer", "shard-0", "evaluator"
CALL_TIMEOUT_S = 30.0
"""A call to one of them that takes longer is given up, and perhaps tried again."""


def island_actor(island: Island) -> str:
    return f"island {island}"


def namespace_of(run: str) -> str:
    return f"archipelago-{run}"
