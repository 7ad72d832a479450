"""What a run's actors are called, in the namespace of the run."""

from __future__ import annotations

from coordinator.protocol import Fragment, Island

FLEET, SYNCER, EVALUATOR = "fleet", "syncer", "evaluator"
SHARD = "shard-0"
"""The first; a run with `sync.shards` has as many."""
CALL_TIMEOUT_S = 30.0
"""A call to one of them that takes longer is given up, and perhaps tried again."""


def island_actor(island: Island) -> str:
    """Light learners, `crew-3.7`, share a process: what no island of a configuration can be called
    (`bench scale`)."""
    return f"island {island.partition('.')[0]}"


def shard_actor(number: int) -> str:
    return f"shard-{number}"


def shards_of(shards: int, fragments: int) -> dict[str, list[Fragment]]:
    """Which shard holds which fragments, all of about one size: in turn, as they fall due."""
    return {
        shard_actor(number): [Fragment(p) for p in range(number, fragments, shards)]
        for number in range(shards)
    }


def namespace_of(run: str) -> str:
    return f"archipelago-{run}"
