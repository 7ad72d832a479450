"""Fault injection by the fleet: the faults of its plan, and those that people request."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

from cluster.config.fault_kinds import FAULTS, SERVICES, Doer, FaultKind
from cluster.config.modes import misfit
from cluster.config.schema import Config, Harm
from cluster.fleet.backend import Handle, RayCluster, Unavailable
from cluster.fleet.core_actors import CoreActors, patience
from cluster.fleet.fault_plan import FaultPlan
from cluster.fleet.inbox import IslandInbox
from cluster.fleet.island_table import Islands
from cluster.fleet.run_events import InjectedFault
from cluster.names import CALL_TIMEOUT_S, FLEET
from cluster.view import View
from coordinator.errors import Unreachable, UserMistake
from coordinator.protocol import Island

log = logging.getLogger("archipelago.fleet")
STRUCK = 1024
"""The most injected faults that wait for the keeper's next look."""


class Injection:
    """One run's fault plan, and the injection of faults."""

    def __init__(
        self,
        run: str,
        config: Config,
        cluster: RayCluster,
        islands: Islands,
        core: CoreActors,
        drain: Callable[[Island], object],
        inbox: IslandInbox,
        outlives: bool,
    ) -> None:
        """Create the injection.

        `drain` removes an island. `inbox` receives the notice of a preemption. `outlives`: the run
        survives the fleet's process.
        """
        self._run, self._config, self._cluster = run, config, cluster
        self._islands, self._core = islands, core
        self._drain, self._inbox, self._outlives = drain, inbox, outlives
        self.struck: deque[InjectedFault] = deque(maxlen=STRUCK)
        """Faults that were injected, until the keeper takes them; any thread adds some."""
        self._plan = FaultPlan(config.faults.plan)

    @property
    def done(self) -> list[int]:
        """The faults of the plan that have happened, by place in the plan."""
        return self._plan.done

    def remember(self, done: Iterable[int]) -> None:
        """Take over from an earlier process which faults have happened."""
        self._plan = FaultPlan(self._config.faults.plan, done)

    def inject_due_faults(self, view: View, keep: Callable[[], None]) -> None:
        """Inject every fault that is due and has a target.

        `keep`: writes the memory of the fleet before a fault, since the fault may end this process.
        """
        for number, fault in self._plan.due_at(view.t, view.live).items():
            planned = f"the plan, at step {fault.at_step}"
            if (victim := self._aim(fault, planned)) is None:
                continue  # it stays due at the next look
            self._plan.struck(number)
            keep()
            try:
                self._break(victim, fault)
            except UserMistake as error:  # a drain that would leave too few must not end the run
                log.warning("the %s of %s does not happen: %s", fault.kind, fault.island, error)

    def harm(self, harm: Harm) -> None:
        """Inject a fault now.

        Errors: `UserMistake` if its target is not there, or it would end the fleet too;
        `Unreachable` if the syncer cannot count it at present.
        """
        why = harm.misfit([*self._islands.actors]) or misfit(self._config, harm)
        if why is not None:
            raise UserMistake(f"run {self._run}: {why}")
        if harm.kind == "node":
            actor = self._islands.actors.get(Island(harm.island))
            if actor is None or self._node_of(actor) == self._cluster.here():
                raise UserMistake(
                    f"run {self._run}: {harm.island} is on the node of the fleet, whose death "
                    "would end the run; choose an island of another node"
                )
        if harm.island == FLEET and not self._outlives:
            raise UserMistake(
                f"run {self._run} was not submitted, so its fleet is not restarted and the run "
                "would end; `archipelago submit` starts a run that can lose its fleet"
            )
        try:
            victim = self._aim(harm, "requested")
        except Unavailable as error:
            raise Unreachable(
                f"run {self._run}: its syncer, which counts faults, does not answer at present: "
                "try again"
            ) from error
        if victim is None:
            raise UserMistake(
                f"run {self._run}: {harm.island} is not there at present; `archipelago status` has "
                "its state, repeat this command when it is live"
            )
        self._break(victim, harm)

    def _aim(self, harm: Harm, why: str) -> Handle | None:
        """Return the target of a fault, once the syncer has counted it; None if it is not there.

        `why`: the reason of the fault, for people.

        Errors: `Unavailable` if the syncer does not answer.
        """
        if harm.island in SERVICES:
            actor = self._cluster.find(harm.island)
        else:
            actor = self._islands.actors.get(Island(harm.island))
        if actor is not None:
            log.warning("%s %s on purpose", harm.kind, harm.island)
            self._core.count_fault(harm.island)
            for_s = harm.for_s if "for_s" in FAULTS[harm.kind].takes else None
            self.struck.append(InjectedFault(harm.kind, harm.island, why, for_s))
        return actor

    def _node_of(self, island: Handle) -> object:
        """Return the node of an island's process.

        Errors: `Unreachable` if it does not answer.
        """
        try:
            return self._cluster.ask(island, "node", meanwhile=patience(CALL_TIMEOUT_S))
        except Unavailable as error:
            raise Unreachable(f"run {self._run}: the island does not answer: {error}") from error

    def _break(self, victim: Handle, harm: Harm) -> None:
        row = FAULTS[harm.kind]
        if harm.kind is FaultKind.PREEMPT:
            self._inbox.preempt(Island(harm.island), harm.for_s)
            return
        if row.doer is Doer.FLEET:
            self._drain(Island(harm.island))
            return
        arguments = [getattr(harm, each) if isinstance(each, str) else each for each in row.takes]
        self._cluster.tell(victim, row.method, *arguments)
