"""The fleet's core actors: syncer, shards and evaluator, started, called and ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

from cluster.config.rule import measures_effects
from cluster.config.schema import Config, Machines
from cluster.failures import Unjudged
from cluster.fleet.backend import Handle, Place, RayCluster, Unavailable
from cluster.fleet.clean_up import each_step
from cluster.fleet.contribution_effects import EffectHistory
from cluster.fleet.evaluation import Evaluating, EvaluationSchedule
from cluster.fleet.placement import hosts, wish
from cluster.fleet.region_evaluation import RegionEvaluations
from cluster.fleet.watchdog import Watchdog
from cluster.names import (
    CALL_TIMEOUT_S,
    EVALUATOR,
    SYNCER,
    Seat,
    group_name,
    region_evaluator,
    shards_of,
)
from cluster.status import RunStatus
from cluster.view import ProcessStarts, View
from cluster.workers.evaluator_answers import ContributionEffect
from coordinator.errors import RunFailed
from coordinator.fragments import Flat, Layout
from coordinator.protocol import Fragment, Island, Version

log = logging.getLogger("archipelago.fleet")

AGAIN_S = 0.5
"""Seconds between two attempts to reach an actor that is being restarted, or to find a place."""
PLACED_S = 300.0
"""The timeout in seconds for machines of the evaluator's own: then others have taken them."""
APART = Seat(EVALUATOR)
"""The seat of an evaluator that has machines of its own."""


class CoreActors:
    """The actors of a run other than its islands; `start` must be called first."""

    def __init__(self, config: Config, cluster: RayCluster) -> None:
        self._config, self._cluster = config, cluster
        self._fragments_of = shards_of(config.sync.shards, config.sync.fragments)
        if config.run.mode.sums_gradients:  # the conductor of the ring has the place of the model
            self._fragments_of = {SYNCER: [p for each in self._fragments_of.values() for p in each]}
        self._evaluator_place: Place | None = None
        self._actors: dict[str, Handle] = {}
        policy = config.durability
        self.watchdog = Watchdog(policy.hang_s, policy.restarts, time.monotonic)
        self.evaluations: EvaluationSchedule
        self._region_of = {group.group: group.region for group in config.islands}
        self.regions = RegionEvaluations((), self._evaluator_of, 0.0)  # until the start
        self._schedules = list[EvaluationSchedule | RegionEvaluations]()  # none until the start
        self.effects = EffectHistory()
        """The measured effects of contributions, since this process began."""
        self._uncounted: list[Unjudged] = []  # failed evaluations that the syncer has yet to count

    @property
    def troubles(self) -> list[str | None]:
        """The reasons why held-out losses are old, of the run and of regions."""
        return [each.trouble for each in self._schedules]

    def start(self, owner: int) -> None:
        """Start the actors, or find those that an earlier process of the fleet has started.

        `owner`: the number of the run's owner.

        Errors: `RunFailed` if there is no place for the evaluator.
        """
        config, cluster = self._config, self._cluster
        machines = config.monitor.evaluator
        self._evaluator_place = place = (
            evaluator_place(machines, cluster) if machines.apart else None
        )
        evaluator = cluster.start_evaluator(place)
        every_s = config.monitor.evaluate_every_s
        measured = self._note_effect if measures_effects(config) else None
        self.evaluations = EvaluationSchedule(
            cluster.evaluating(evaluator), every_s, time.monotonic, measured
        )
        self.regions = RegionEvaluations(
            config.evaluated_regions, self._evaluator_of, every_s, time.monotonic, measured
        )
        self._schedules = [self.evaluations, self.regions]
        labels = config.sync.shard_labels
        nodes = [] if labels is None else hosts(labels, cluster.nodes())
        shards = {
            name: cluster.start_shard(name, node, owner)
            for name, node in zip(self._fragments_of, cycle(nodes or [None]), strict=False)
            if name != SYNCER
        }
        syncer = cluster.start_syncer(owner)
        self._actors = {SYNCER: syncer, **shards, EVALUATOR: evaluator}
        for name, actor in self._actors.items():
            sign, restart = partial(cluster.sign, actor), partial(cluster.restart, actor)
            self.watchdog.add(name, sign, restart, vital=name != EVALUATOR)

    def _note_effect(self, effect: ContributionEffect) -> None:
        self.effects = self.effects.added(effect)

    def _evaluator_of(self, region: str) -> Evaluating:
        return self._cluster.evaluating(self._cluster.start_region_evaluator(region))

    def begin(self) -> Layout:
        """Make the initial model, give each shard its fragments, and open the syncer."""
        layout = self._insist(EVALUATOR, "layout")
        for name, own in self._fragments_of.items():
            seeded, message = list[Fragment](), ""  # a shard that is restarted has none again
            while missing := [p for p in own if p not in seeded]:
                seeded, message = self._seed(name, layout, missing[0])
            log.info("%s has its fragments%s%s", name, message and "; ", message)
        self._insist(SYNCER, "open", layout)
        self._cluster.tell(
            self._actors[EVALUATOR], "initial_loss"
        )  # the evaluator keeps it for the summary
        return layout

    def _seed(self, shard: str, layout: Layout, p: Fragment) -> tuple[list[Fragment], str]:
        """Have the shard fetch a fragment of the initial model, which never passes through here."""
        while True:
            flat = self._cluster.promise(self._actors[EVALUATOR], "initial", p)
            try:
                return self._ask(shard, "seed", layout, p, flat)
            except Unavailable as error:
                log.warning("asking again: %s", error)
                time.sleep(AGAIN_S)

    def look(
        self, held: Mapping[Island, str] | None, processes: ProcessStarts
    ) -> tuple[View, RunStatus]:
        """Return what the fleet decides from, and the status for people.

        `held`: islands with devices, with their groups; None: not known yet. `processes`: the
        starts of their processes.

        Errors: `Unavailable`; the error that has ended the run.
        """
        seen = self._ask(SYNCER, "look", held, processes)
        self.watchdog.look()
        return seen

    def stop(self, why: str) -> None:
        """Order the syncer to stop the run."""
        self._ask(SYNCER, "stop", why)

    def drain(self, island: Island, why: str) -> None:
        """Order the syncer to drain an island."""
        self._ask(SYNCER, "drain", island, why)

    def count_fault(self, victim: str) -> None:
        """Have the syncer count a fault that was injected; may be called from any thread."""
        check_timeout = patience(CALL_TIMEOUT_S)
        self._cluster.ask(self._actors[SYNCER], "fault", Island(victim), meanwhile=check_timeout)

    def judge(self, live: Iterable[Island] = ()) -> None:
        """Have the model evaluated if it is time; a failure is only counted.

        `live`: the live islands, whose regions evaluate it, too.
        """
        self.regions.look({self._region_of.get(group_name(island)) for island in live})
        if (why := self.evaluations.look()) is not None:
            self._uncounted.append(why)
        while self._uncounted:
            self._ask(SYNCER, "unjudged", self._uncounted[0])
            self._uncounted.pop(0)

    def verdict(
        self, versions: Sequence[Version], enough: Callable[[], bool]
    ) -> tuple[dict[str, Any], str | None]:
        """Return the losses and metrics of the final model, and why one of them is missing.

        It waits for the evaluations until it is `enough`.
        """

        def over() -> bool:
            self.watchdog.look()  # watch the evaluator too
            return enough()

        found = self.evaluations.verdict(versions, over)
        by_region, missing = self.regions.verdict(versions, over)
        why = "; ".join([*([] if found.why is None else [found.why]), *missing]) or None
        return {**found.figures, "heldout_by_region": by_region}, why

    def close(self) -> dict[str, object]:
        """Close the tape; return the figures that the syncer has measured."""
        return self._ask(SYNCER, "close")

    def public(self, meanwhile: Callable[[], None] | None = None) -> Iterator[tuple[Version, Flat]]:
        """Yield the public fragments of the run, one after another in order.

        `meanwhile`: for callers other than the keeper: called while an answer is awaited.

        Errors: `Unavailable`, also while a restarted shard has no model yet.
        """
        holder = {p: name for name, own in self._fragments_of.items() for p in own}
        for p in sorted(holder):
            name = holder[p]
            if meanwhile is None:
                found = self._ask(name, "whole", [p])
            else:
                found = self._cluster.ask(self._actors[name], "whole", [p], meanwhile=meanwhile)
            if found is None:
                raise Unavailable(f"{name} has no model yet")
            yield found[0]

    def end(self) -> None:
        """End all core actors that are there; log what fails."""
        regional = map(region_evaluator, self._config.evaluated_regions)
        names = dict.fromkeys((SYNCER, *self._fragments_of, EVALUATOR, *regional))
        each_step(*(partial(self._end, name) for name in names), self._give_back)

    def _end(self, name: str) -> None:
        if (actor := self._cluster.find(name)) is not None:
            self._cluster.end(actor)

    def _give_back(self) -> None:
        if (place := self._evaluator_place or self._cluster.reserved(APART)) is not None:
            place.give_back()

    def _ask(self, name: str, method: str, *arguments: object) -> Any:
        """Return an actor's answer; one that hangs meanwhile is restarted, and is `Unavailable`."""
        self.watchdog.waits_for(name)
        watch = partial(self.watchdog.look, waiting_for=name)
        return self._cluster.ask(self._actors[name], method, *arguments, meanwhile=watch)

    def _insist(self, name: str, method: str, *arguments: object) -> Any:
        """Retry a call while the actor is being restarted, since the run needs the actor."""
        while True:
            try:
                return self._ask(name, method, *arguments)
            except Unavailable as error:
                log.warning("asking again: %s", error)
                time.sleep(AGAIN_S)


def evaluator_place(machines: Machines, cluster: RayCluster) -> Place:
    """Reserve machines for the evaluator alone, and wait for them.

    Errors: `RunFailed` if they are not there after `PLACED_S`.
    """
    until_s = time.monotonic() + PLACED_S
    place = cluster.reserved(APART) or cluster.reserve(machines, APART)
    while not place.ready():
        if time.monotonic() > until_s:
            place.give_back()
            raise RunFailed(
                f"monitor.evaluator: {wish(machines)} cannot be had for {PLACED_S:g} s, others "
                "have taken them; free them, or ask for less"
            )
        time.sleep(AGAIN_S)
    return place


def holds_model(config: Config, cluster: RayCluster) -> bool:
    """Return whether the shards of a run hold its model, read it, or do not answer.

    Where gradients are summed there are no shards, and the result is False.
    """
    if config.run.mode.sums_gradients:
        return False
    try:
        return all(
            (shard := cluster.find(name)) is not None
            and cluster.ask(shard, "whole", [], meanwhile=patience(CALL_TIMEOUT_S)) is not None
            for name in shards_of(config.sync.shards, config.sync.fragments)
        )
    except Unavailable:
        return True


def patience(within_s: float) -> Callable[[], None]:
    """Return a function that raises `Unavailable` when it is called after this timeout."""
    end_s = time.monotonic() + within_s

    def meanwhile() -> None:
        if time.monotonic() > end_s:
            raise Unavailable(f"no answer for {within_s:g} s")

    return meanwhile
