"""The tables of fault injection, and of the policy for islands that fail.

The comment above a key is its documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from cluster.config.fault_kinds import FAULTS, SERVICES, FaultKind, possible
from cluster.config.table import Table
from cluster.config.values import Count, Positive, nearest


class Harm(Table):
    """A fault and its target; `fault_kinds.FAULTS` describes the kinds and their targets."""

    # The kind of fault: kill, stop, nan, scale, slow, cut, node, drain or disk.
    kind: Annotated[FaultKind, Field(strict=False)]
    # The target: the name of an island, or one of the services syncer, shard-0, evaluator, fleet.
    island: str
    # The factor of "scale" (on contributions) and of "slow" (on the time of a step).
    factor: Annotated[float, Field(allow_inf_nan=False)] = 1000.0
    # How long "stop", "slow", "cut" and "disk" last, in seconds.
    for_s: Positive = 20.0

    def misfit(self, islands: Sequence[str]) -> str | None:
        """Return why this fault cannot hit a run with these islands; None if it can."""
        if self.island not in (*SERVICES, *islands):
            return f'the {self.kind} of "{self.island}" names no island; ' + nearest(
                self.island, islands
            )
        if self.kind in possible(self.island):
            return None
        if self.island in SERVICES:
            hint = f"it can be {' or '.join(sorted(possible(self.island)))}"
        else:
            hint = f"that is for {' or '.join(sorted(FAULTS[self.kind].services, reverse=True))}"
        return f'"{self.island}" cannot have the fault {self.kind}; {hint}'


class PlannedFault(Harm):
    """A planned fault; it fires once t >= `at_step` and its target, if an island, is live."""

    # The syncer step t from which on the fault fires.
    at_step: Count


class Attack(Harm):
    """A fault of `archipelago chaos`."""

    # Seconds from the start of `archipelago chaos` to the fault.
    after_s: Annotated[float, Field(ge=0)]


class FailurePolicy(Table):
    """The reaction to failures of islands."""

    # Deaths of an island's processes without a contribution in between, until the fleet gives up.
    deaths: Count = 5
    # The same limit for deaths by an exception of the program.
    exceptions: Count = 3
    # What happens to an island at one of these limits: set aside (its devices are returned), or
    # stop (the run stops).
    then: Literal["set aside", "stop"] = "set aside"
    # Delay before an island's second restart, in seconds. The first restart is immediate. Each
    # further one waits twice as long (exponential back-off).
    first_delay_s: Positive = 2.0
    # The longest delay before a restart, in seconds.
    longest_delay_s: Positive = 60.0
    # What to do with an island that is silent but not dead: replace its process, or wait.
    hang: Literal["replace", "wait"] = "replace"
    # Seconds of silence after which an island hangs.
    hang_s: Positive = 300.0
    # Seconds that an island may take to drain. After that the fleet takes its devices back.
    drain_s: Positive = 60.0


class FaultsConfig(Table):
    """The table `[faults]`."""

    # Faults to inject during the run, for example {at_step = 150, kind = "kill", island = "eu-2"}.
    plan: Annotated[tuple[PlannedFault, ...], Field(strict=False)] = ()
    # The reaction to failures of islands: table [faults.policy].
    policy: FailurePolicy = FailurePolicy()
