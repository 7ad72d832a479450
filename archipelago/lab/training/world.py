"""All parts of a run in virtual time: rules, shell, learners and shard, as on Ray."""

from __future__ import annotations

from collections.abc import Sequence

from archipelago.lab.training.compiled_parts import compiled_parts
from archipelago.lab.training.faults import Faults
from archipelago.lab.training.lease_source import Reading
from archipelago.lab.training.loss_curve import Learned, LossCurve
from archipelago.lab.training.network import Direction, LinkedPlace, TrainingNetwork
from archipelago.lab.training.ports import TrainingPorts
from archipelago.lab.training.timing import Timing
from archipelago.lab.virtual.shards import VirtualShards
from archipelago.lab.virtual.site import VirtualSite, progress_text
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


class TrainingWorld(Log):
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
        self._kit = kit = compiled_parts(config)
        names = config.island_names if order is None else order
        places = [
            LinkedPlace(island, up=Direction(timing), down=Direction(timing)) for island in names
        ]
        self.site = site = VirtualSite(config.run.seed, places)
        fragments = [Fragment(p) for p in range(config.sync.fragments)]
        arrays = {
            p: first_of(config, kit.layout, p, flat)
            for p, flat in zip(fragments, curve.evaluator.initial(), strict=True)
        }
        self.shard = shard = shard_of(config, kit.layout, arrays)
        self._shards = VirtualShards(site.loop, [fragments], lambda: shard)
        self.network = TrainingNetwork(site, config, kit, timing, self._shards, reading)
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
            state_fragment=kit.layout.state_fragment,
        )
        self.tape: list[tuple[float, Event]] = []
        self.syncer = site.syncer = Syncer(
            rule,
            initial(rule),
            TrainingPorts(self.network, self._shards),
            now_s=site.now_s,
            tape=self,
            measures=self.measures,
        )
        self._faults = Faults(config.faults.plan, self.network, self.measures, timing)

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
        return [flat for _, flat in self._shards.whole()]

    def run(self) -> Learned:
        """Train to the end.

        Errors: `RunFailed` if the run would never end.
        """
        site, loop = self.site, self.site.loop
        with site.playing():
            for place in site.places.values():
                self.network.start(place)
            loop.run(self._limit_s, self.syncer.finished.is_set)
            loop.run(loop.now_s, lambda: False)  # the last versions become public
        site.check()
        state, now_s = self.syncer.state, loop.now_s
        if state.phase is not Phase.FINISHED:
            text = progress_text(state, self.config.run.steps)
            raise RunFailed(f"not at its end after {now_s:.0f} s of virtual time: {text}")
        measured = self.measures.summary(state, now_s)
        return self._curve.ended(self.config, state.t, now_s, measured, self.public)

    @property
    def _limit_s(self) -> float:
        groups = self.config.islands
        slowest_s = max(max(self.timing.step_s / each.speed, each.step_s) for each in groups)
        return LEEWAY * self.config.run.steps * slowest_s + PATIENCE_S
