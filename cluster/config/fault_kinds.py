"""The one table of what can be broken on purpose: who can have it, who does it, how it is played.

A new kind is a row here and, if no process can do it to itself yet, a method where `doer` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cluster.names import EVALUATOR, FLEET, SHARD, SYNCER


class FaultKind(StrEnum):
    """What happens to somebody."""

    KILL = "kill"
    STOP = "stop"
    NAN = "nan"
    SCALE = "scale"
    SLOW = "slow"
    CUT = "cut"
    NODE = "node"
    DRAIN = "drain"
    DISK = "disk"


class Doer(StrEnum):
    """Who carries it out."""

    PROCESS = "process"  # the victim's own, by `method` of its actor
    FLEET = "fleet"  # as people ask for it


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One kind of fault.

    `what`: in a line, for people. `services`: which of a run that are no islands can have it;
    `islands`: can islands? `method`: of the victim's actor; `takes`: which fields of the fault are
    its arguments, or a number itself. `simulated`: the trouble that stands for it with an island in
    the simulator (`sim.plan.Trouble`); empty: it has none.
    """

    what: str
    islands: bool
    services: frozenset[str]
    method: str = ""
    takes: tuple[str | float, ...] = ()
    simulated: str = ""
    doer: Doer = Doer.PROCESS


SHARD_PREFIX = "shard-"
NOBODY: frozenset[str] = frozenset()
SERVICES = (SYNCER, SHARD, EVALUATOR, FLEET)
"""What of a run is no island and can be broken."""
FAULTS: Mapping[FaultKind, FaultRow] = {
    FaultKind.KILL: FaultRow(
        "SIGKILL, as the kernel does it to whoever takes too much memory",
        True, frozenset(SERVICES), "kill", simulated="crash",
    ),
    FaultKind.STOP: FaultRow(
        "SIGSTOP, and SIGCONT after `for_s`: a process that hangs",
        True, frozenset({SYNCER, SHARD, EVALUATOR}), "halt", ("for_s",), "hang",
    ),
    FaultKind.NAN: FaultRow(
        "what the island hands in from then on is not a number",
        True, NOBODY, "spoil", (math.nan,), "nan",
    ),
    FaultKind.SCALE: FaultRow(
        "what the island hands in from then on is `factor` times too large",
        True, NOBODY, "spoil", ("factor",), "loud",
    ),
    FaultKind.SLOW: FaultRow(
        "its steps take `factor` times as long, for `for_s`: a straggler",
        True, NOBODY, "slow", ("factor", "for_s"), "slow",
    ),
    FaultKind.CUT: FaultRow(
        "none of our calls reach it or leave it, for `for_s`",
        True, NOBODY, "cut", ("for_s",), "cut",
    ),
    FaultKind.NODE: FaultRow(
        "SIGKILL to the raylet of its node, and so to everything on it",
        True, NOBODY, "kill_node", simulated="vanish",
    ),
    FaultKind.DRAIN: FaultRow(
        "it hands in what it has and leaves, as for a preemption",
        True, NOBODY, simulated="drain", doer=Doer.FLEET,
    ),
    FaultKind.DISK: FaultRow(
        "the process can write no file beyond 4 KiB, for `for_s`: the kernel's own errors",
        False, frozenset({SYNCER, SHARD}), "fill", ("for_s",),
    ),
}  # fmt: skip


def possible(victim: str) -> frozenset[FaultKind]:
    """What this service can have; for any other name, what an island can."""
    if victim in SERVICES:
        return frozenset(kind for kind, row in FAULTS.items() if victim in row.services)
    return frozenset(kind for kind, row in FAULTS.items() if row.islands)
