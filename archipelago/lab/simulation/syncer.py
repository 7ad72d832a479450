"""The syncer's place in a simulated cluster: its shell, its tape, its death and its return."""

from __future__ import annotations

import math
from collections.abc import Sequence

from archipelago.lab.checks.facts import Violation
from archipelago.lab.checks.judge import InvariantJudge
from archipelago.lab.simulation.site import SimSite
from cluster.failures import Failure
from cluster.syncer.measures import Measures
from cluster.syncer.ports import Log, Ports
from cluster.syncer.shell import Syncer
from cluster.transfers import Upload
from coordinator.protocol import Effect, Event, Life, Resume, Vitals
from coordinator.state import State, initial


class SyncerSlot(Log):
    """The slot of the simulated syncer's process; the flushed part of its tape survives a crash.

    Attributes:
        hearing: The event that is being handled, or that has raised.
        states: The state after each event.
    """

    def __init__(self, site: SimSite, ports: Ports, judge: InvariantJudge) -> None:
        self.site, self.ports, self.judge = site, ports, judge
        self.tape: list[tuple[float, Event]] = []
        self.states: list[State] = []
        self.hearing: Event | None = None
        self.flushed = 0
        self.died = False
        site.syncer = self._syncer(initial(site.plan.rule))

    def _syncer(self, state: State) -> Syncer:
        return Witnessed(self, state)

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """Add an event and the state after it to the tape.

        Errors: `Violation` if the run has more events than its plan allows.
        """
        assert self.site.syncer is not None
        self.tape.append((now_s, event))
        self.states.append(self.site.syncer.state)
        if len(self.tape) > (limit := self.site.plan.most_events):
            raise Violation("the run comes to an end", f"{limit} events, and the run has not ended")

    def flush(self) -> None:
        """Make the tape durable up to here."""
        self.flushed = len(self.tape)

    def die(self) -> None:
        """Kill the syncer; only the flushed part of its tape is certain to survive."""
        if self.site.syncer is None:
            return
        self.site.syncer.close()
        self.site.syncer = None
        cut = self.site.rng.randint(self.flushed, len(self.tape))
        del self.tape[cut:], self.states[cut:]
        self.died = True

    def resume(self) -> None:
        """Restart the syncer as a new generation, and recover the shards with it."""
        if self.site.syncer is not None:
            return
        state = self.states[-1] if self.states else initial(self.site.plan.rule)
        wanted = [fragment.version for fragment in state.fragments]
        generation, dies = state.generation + 1, self.site.rng.random() < 0.5
        versions = self.site.shards.recover(wanted, generation, dies=dies)
        self.site.syncer = self._syncer(state)
        self.site.syncer.feed(Resume(generation, versions))
        self.flush()


class Witnessed(Syncer):
    """The unchanged shell, with a note of the event that it handles, in case it raises."""

    def __init__(self, seat: SyncerSlot, state: State) -> None:
        self._seat = seat
        site = seat.site
        super().__init__(
            site.plan.rule,
            state,
            seat.ports,
            now_s=site.now_s,
            tape=seat,
            measures=JudgedMeasures(seat.judge),
        )

    def feed(self, event: Event) -> tuple[Effect, ...]:
        """Note the event, and handle it."""
        self._seat.hearing = event
        effects = super().feed(event)
        self._seat.hearing = None
        return effects


class JudgedMeasures(Measures):
    """Measures that report every event to the judge, and to nothing else."""

    def __init__(self, judge: InvariantJudge) -> None:
        self._judge = judge

    def saw(
        self, before: State, event: Event, after: State, effects: Sequence[Effect], now_s: float
    ) -> None:
        """Let the judge check what the rules did on an event."""
        self._judge.saw(before, event, after, effects, now_s)

    def heard(self, life: Life, vitals: Vitals, now_s: float = math.nan) -> None:
        """Do nothing: no rule depends on measurements of learners."""

    def received(self, state: State, uploads: Sequence[Upload], now_s: float) -> None:
        """Do nothing: no rule depends on measurements of links."""

    def failed(self, life: Life | None, failure: Failure) -> None:
        """Do nothing: no rule depends on how often an island has failed."""

    def trouble(self, subject: str, why: str | None) -> None:
        """Do nothing: no rule depends on why the disk fails."""
