"""The tables of fault injection, and of the policy for islands that fail.

The comment above a key is its documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from cluster.config.fault_kinds import FAULTS, SERVICES, FaultKind, faults_of
from cluster.config.table import Table
from cluster.config.values import HTTP_ADDRESS, Count, Positive, nearest


class Harm(Table):
    """A fault and its target; `fault_kinds.FAULTS` describes the kinds and their targets."""

    kind: Annotated[FaultKind, Field(strict=False)]
    """The kind of fault: kill, stop, nan, scale, slow, cut, node, drain, preempt or disk."""
    island: str
    """The target: an island, or one of the services syncer, shard-0, evaluator and fleet."""
    factor: Annotated[float, Field(allow_inf_nan=False)] = 1000.0
    """The factor of "scale" (on contributions) and of "slow" (on the time of a step)."""
    for_s: Positive = 20.0
    """The duration of "stop", "slow", "cut", "preempt" and "disk", in seconds."""

    def misfit(self, islands: Sequence[str]) -> str | None:
        """Return why this fault cannot hit a run with these islands; None if it can."""
        if self.island not in (*SERVICES, *islands):
            return f'the {self.kind} of "{self.island}" names no island; ' + nearest(
                self.island, islands
            )
        if self.kind in faults_of(self.island):
            return None
        if self.island in SERVICES:
            hint = f"it can be {' or '.join(sorted(faults_of(self.island)))}"
        else:
            hint = f"that is for {' or '.join(sorted(FAULTS[self.kind].services, reverse=True))}"
        return f'"{self.island}" cannot have the fault {self.kind}; {hint}'


class PlannedFault(Harm):
    """A planned fault; it fires once t >= `at_step` and its target, if an island, is live."""

    at_step: Count
    """The fault fires once the syncer's clock t reaches this step."""


class Attack(Harm):
    """A fault of `archipelago chaos`."""

    after_s: Annotated[float, Field(ge=0)]
    """Seconds from the start of `archipelago chaos` to the fault."""


class FailurePolicy(Table):
    """The reaction to failures of islands."""

    deaths: Count = 5
    """Deaths of an island without a contribution in between, until the fleet gives up."""
    exceptions: Count = 3
    """Limit for deaths by an exception of the program."""
    then: Literal["set aside", "stop"] = "set aside"
    """Reaction to an island at one of these limits.

    "set aside" returns its devices, "stop" ends the run.
    """
    first_delay_s: Positive = 2.0
    """Delay before an island's second restart, in seconds.

    The first restart is immediate. Each further one waits twice as long (exponential back-off).
    """
    longest_delay_s: Positive = 60.0
    """The longest delay before a restart, in seconds."""
    hang: Literal["replace", "wait"] = "replace"
    """Reaction to an island that is silent but not dead: replace its process, or wait."""
    hang_s: Positive = 300.0
    """Seconds of silence after which an island hangs."""
    drain_s: Positive = 60.0
    """Seconds that an island may take to drain. After that the fleet takes its devices back."""


class PreemptionConfig(Table):
    """The notices of a cloud that it takes a machine away."""

    cloud: Literal["gce", "aws", "azure"] | None = None
    """Cloud whose metadata server each host of an island polls for notices; default: none."""
    address: Annotated[str, Field(pattern=HTTP_ADDRESS)] | None = None
    """Address of the metadata server, such as "http://127.0.0.1:8080"; default: the cloud's own."""
    every_s: Positive = 5.0
    """Seconds between two polls."""


class FaultsConfig(Table):
    """The table `[faults]`."""

    plan: Annotated[tuple[PlannedFault, ...], Field(strict=False)] = ()
    """Faults to inject, for example {at_step = 150, kind = "kill", island = "eu-2"}."""
    policy: FailurePolicy = FailurePolicy()
    """The reaction to failures of islands: table [faults.policy]."""
    preemption: PreemptionConfig = PreemptionConfig()
    """Notices of the cloud that it takes a machine away: table [faults.preemption]."""
