"""All parts of a run in virtual time: rules, shell, learners and shard, as on Ray."""

from __future__ import annotations

from collections.abc import Sequence

from archipelago.lab.simulation.event_loop import VirtualLoop, running
from archipelago.lab.simulation.world import quiet
from archipelago.lab.training.compiled_parts import kit_of
from archipelago.lab.training.faults import Faults
from archipelago.lab.training.lease_source import Reading
from archipelago.lab.training.loss_curve import Learned, LossCurve
from archipelago.lab.training.network import Direction, IslandPlace, VirtualNetwork
from archipelago.lab.training.ports import VirtualPorts
from archipelago.lab.training.process import VirtualProcess
from archipelago.lab.training.timing import Timing
from cluster.config.rule import group_of, rule_of, wire_of_moments
from cluster.config.schema import Config
from cluster.shard.build import first_of, shard_of
from cluster.syncer.measures import Measures
from cluster.syncer.ports import Log
from cluster.syncer.shell import Syncer
from coordinator.errors import RunFailed
from coordinator.fragments import Flat, Layout
from coordinator.frozen import replace
from coordinator.protocol import Effect, Event, Fragment, Island
from coordinator.state import EDITION, Phase, initial

LEEWAY = 20
"""The factor of the slowest island's time for its steps above which a run will not end."""
PATIENCE_S = 1000.0
"""Additional seconds for restarts, bars and last rounds, which do not depend on the step time."""


class VirtualWorld(Log):
    """All parts of one run, and its tape.

    `tape` holds each event with its time.
    """

    def __init__(
        self,
        config: Config,
        timing: Timing,
        curve: LossCurve,
        *,
        reading: Reading | None = None,
        order: Sequence[Island] | None = None,
        edition: int = EDITION,
    ) -> None:
        """Build the run; its islands ask for their first lives in `order`.

        `reading` holds the leases that each island reads instead of the granted ones, `edition` is
        that of the rules.

        Errors: `UserMistake` if there is no such task.
        """
        self.config, self.timing, self._curve = config, timing, curve
        self._kit = kit = kit_of(config)
        self.loop = VirtualLoop()
        flats = curve.evaluator.initial()
        arrays = {Fragment(p): first_of(config, flat) for p, flat in enumerate(flats)}
        self.shard = shard_of(config, kit.layout, arrays)
        names = config.island_names if order is None else order
        places = [
            IslandPlace(
                island, group_of(config, island).batch_size, Direction(timing), Direction(timing)
            )
            for island in names
        ]
        self.network = VirtualNetwork(
            self.loop, timing, kit.task, kit.layout, self.shard, places, reading
        )
        rule = rule_of(config, kit.layout, edition)
        if reading is not None:  # the cursors refer to leases that these rules have not granted
            rule = replace(rule, batches=tuple((name, 0) for name, _ in rule.batches))
        groups = {name: group_of(config, name).group for name in config.island_names}
        self.measures = Measures(
            "virtual",
            groups,
            kit.layout.sizes,
            config.sync.wire_down,
            now_s=0.0,
            wire_moments=wire_of_moments(config),
        )
        self.tape: list[tuple[float, Event]] = []
        self.syncer = self.network.syncer = Syncer(
            rule,
            initial(rule),
            VirtualPorts(self.network),
            now_s=self.loop.time,
            tape=self,
            measures=self.measures,
        )
        self._faults = Faults(config.faults.plan, self.network, self.measures, timing, self._start)

    # --- the tape ---------------------------------------------------------------------------------

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """Add an event to the tape, then strike faults and evaluate the model if these are due."""
        self.tape.append((now_s, event))
        state = self.syncer.state
        self._faults.look(self.syncer)
        if state.phase is Phase.RUNNING:
            self._curve.averages.see(state.t, lambda: self.public)
        if self._curve.due(state.t) and state.phase is Phase.RUNNING:
            self._curve.look(state.t, now_s, state.ledger.trained, self.public)

    def flush(self) -> None:
        """Do nothing: no tape outlives this process."""

    # --- the run ----------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """The partition of the parameters into fragments."""
        return self._kit.layout

    @property
    def public(self) -> list[Flat]:
        """The fragments of the global model that all learners have."""
        fragments = [Fragment(p) for p in range(self.config.sync.fragments)]
        return [flat for _, flat in self.shard.whole(fragments)]

    def run(self) -> Learned:
        """Train to the end.

        Errors: `RunFailed` if the run would never end.
        """
        with running(self.loop), quiet():
            try:
                for place in self.network.places.values():
                    self._start(place)
                self.loop.run(self._limit_s, self.syncer.finished.is_set)
                self.loop.run(self.loop.now_s, lambda: False)  # the last versions become public
            finally:
                self.syncer.close()
                self.loop.finish()
        if self.syncer.failure is not None:
            raise self.syncer.failure
        state, now_s = self.syncer.state, self.loop.now_s
        if state.phase is not Phase.FINISHED:
            raise RunFailed(
                f"not at its end after {now_s:.0f} s of virtual time: t = {state.t} of "
                f"{self.config.run.steps}; "
                + "; ".join(f"{m.life} is {m.status}: {m.why}" for m in state.members.values())
            )
        measured = self.measures.summary(state, now_s)
        return self._curve.ended(self.config, state.t, now_s, measured, self.public)

    @property
    def _limit_s(self) -> float:
        groups = self.config.islands
        slowest_s = max(max(self.timing.step_s / each.speed, each.step_s) for each in groups)
        return LEEWAY * self.config.run.steps * slowest_s + PATIENCE_S

    def _start(self, place: IslandPlace) -> None:
        """Start a process at a place, unless one is there or the island is retired."""
        if place.retired or place.process is not None:
            return
        place.started += 1
        seed = f"{self.config.run.seed}/{place.island}/{place.started}"
        place.process = VirtualProcess(
            self.config, place.island, self._kit, self.timing, self.loop, self.network, seed
        )
        place.process.begin()
