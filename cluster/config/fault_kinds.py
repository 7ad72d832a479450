"""The table of all kinds of fault injection: the possible targets, the executor, the simulation.

To add a kind, add a row here and, if the process named by `doer` cannot do it yet, a method there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cluster.names import EVALUATOR, FLEET, SHARD, SYNCER


class FaultKind(StrEnum):
    """A kind of fault; `FAULTS` describes each one."""

    KILL = "kill"
    STOP = "stop"
    NAN = "nan"
    SCALE = "scale"
    SLOW = "slow"
    CUT = "cut"
    NODE = "node"
    DRAIN = "drain"
    PREEMPT = "preempt"
    DISK = "disk"


class Doer(StrEnum):
    """The process that carries out a fault."""

    PROCESS = "process"
    """The target itself, by the method `FaultRow.method` of its actor."""
    FLEET = "fleet"
    """The fleet, in the same way as on a user's request."""


@dataclass(frozen=True, slots=True)
class FaultRow:
    """The description of one kind of fault."""

    what: str
    """A line that explains the fault to users."""
    islands: bool
    """True if an island can have the fault."""
    services: frozenset[str]
    """The services of a run, that is processes other than islands, that can have the fault."""
    method: str = ""
    """The method of the target's actor that carries it out; empty if the fleet does."""
    takes: tuple[str | float, ...] = ()
    """The method's arguments: names of fields of the fault, or constants."""
    simulated: str = ""
    """The simulator's counterpart for an island (`simulation.plan.Trouble`); empty if none."""
    doer: Doer = Doer.PROCESS
    """The process that carries it out."""


SHARD_PREFIX = "shard-"
NO_SERVICE: frozenset[str] = frozenset()
SERVICES = (SYNCER, SHARD, EVALUATOR, FLEET)
"""The targets of faults that are not islands."""
FAULTS: Mapping[FaultKind, FaultRow] = {
    FaultKind.KILL: FaultRow(
        "SIGKILL, as the kernel sends it to a process that takes too much memory",
        True, frozenset(SERVICES), "kill", simulated="crash",
    ),
    FaultKind.STOP: FaultRow(
        "SIGSTOP, and SIGCONT after `for_s`: a process that hangs",
        True, frozenset({SYNCER, SHARD, EVALUATOR}), "halt", ("for_s",), "hang",
    ),
    FaultKind.NAN: FaultRow(
        "the contributions of the island from then on are NaN",
        True, NO_SERVICE, "spoil", (math.nan,), "nan",
    ),
    FaultKind.SCALE: FaultRow(
        "the contributions of the island from then on are `factor` times too large",
        True, NO_SERVICE, "spoil", ("factor",), "loud",
    ),
    FaultKind.SLOW: FaultRow(
        "its steps take `factor` times as long, for `for_s`: a straggler",
        True, NO_SERVICE, "slow", ("factor", "for_s"), "slow",
    ),
    FaultKind.CUT: FaultRow(
        "none of our calls reach it or leave it, for `for_s`",
        True, NO_SERVICE, "cut", ("for_s",), "cut",
    ),
    FaultKind.NODE: FaultRow(
        "SIGKILL to the raylet of its node, and so to everything on it",
        True, NO_SERVICE, "kill_node", simulated="vanish",
    ),
    FaultKind.DRAIN: FaultRow(
        "it hands in its work and leaves for good, as for `archipelago drain`",
        True, NO_SERVICE, simulated="drain", doer=Doer.FLEET,
    ),
    FaultKind.PREEMPT: FaultRow(
        "a notice that its machines go away: it hands in, leaves, and may return `for_s` later",
        True, NO_SERVICE, takes=("for_s",), simulated="drain", doer=Doer.FLEET,
    ),
    FaultKind.DISK: FaultRow(
        "the process can write no file beyond 4 KiB, for `for_s`: the kernel's own errors",
        False, frozenset({SYNCER, SHARD}), "fill", ("for_s",),
    ),
}  # fmt: skip


def faults_of(victim: str) -> frozenset[FaultKind]:
    """Return the faults that this service can have; for any other name, those of an island."""
    if victim in SERVICES:
        return frozenset(kind for kind, row in FAULTS.items() if victim in row.services)
    return frozenset(kind for kind, row in FAULTS.items() if row.islands)
