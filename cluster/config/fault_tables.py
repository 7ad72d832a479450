"""The tables of faults that are injected on purpose, and of the policy for islands that fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from cluster.config.fault_kinds import FAULTS, SERVICES, FaultKind, possible
from cluster.config.table import Table
from cluster.config.values import Count, Positive, nearest


class Harm(Table):
    """What is broken on purpose; `fault_kinds.FAULTS` says what each kind does, and to whom."""

    kind: Annotated[FaultKind, Field(strict=False)]
    island: str  # or one of SERVICES
    factor: Annotated[float, Field(allow_inf_nan=False)] = 1000.0  # of "scale" and "slow"
    for_s: Positive = 20.0  # of "stop", "slow", "cut" and "disk"

    def misfit(self, islands: Sequence[str]) -> str | None:
        """Why this cannot happen to a run with these islands."""
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
    """A planned fault: it fires once t >= `at_step` and the island that it hits, if any, is
    live."""

    at_step: Count


class Attack(Harm):
    """A fault that strikes so many seconds after `archipelago chaos` began."""

    after_s: Annotated[float, Field(ge=0)]


class FailurePolicy(Table):
    """What is done about which failure of an island."""

    deaths: Count = 5  # of its processes without a contribution between ...
    exceptions: Count = 3  # ... or so many that ended with an exception of the program ...
    then: Literal["set aside", "stop"] = "set aside"  # ... and it is, or the run stops
    first_delay_s: Positive = 2.0  # before its second restart; then twice as long each time ...
    longest_delay_s: Positive = 60.0  # ... at most
    hang: Literal["replace", "wait"] = "replace"  # one that is silent and not dead ...
    hang_s: Positive = 300.0  # ... after so long
    drain_s: Positive = 60.0  # a draining one that says nothing for so long is taken for dead


class FaultsConfig(Table):
    plan: Annotated[tuple[PlannedFault, ...], Field(strict=False)] = ()
    policy: FailurePolicy = FailurePolicy()
