"""The fleet's core actors: syncer, shards and evaluator, started, asked and ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

from cluster.config.schema import Config
from cluster.failures import Unjudged
from cluster.fleet.backend import Handle, Place, RayCluster, Unavailable
from cluster.fleet.evaluation import EvaluationSchedule
from cluster.fleet.placement import hosts, wish
from cluster.fleet.watchdog import Watchdog
from cluster.names import CALL_TIMEOUT_S, EVALUATOR, SYNCER, Seat, shards_of
from cluster.status import RunStatus
from cluster.view import View
from coordinator.errors import RunFailed
from coordinator.fragments import Flat, Layout
from coordinator.protocol import Fragment, Island, Version

log = logging.getLogger("archipelago.fleet")

AGAIN_S = 0.5
"""Between two attempts to hear an actor that is being restarted, or to find a place."""
PLACED_S = 300.0
"""Machines of its own that the evaluator does not get within this are taken by others."""
APART = Seat(EVALUATOR)


class CoreActors:
    """The actors of a run beside its islands. `start` comes before everything else."""

    def __init__(self, config: Config, cluster: RayCluster) -> None:
        self._config, self._cluster = config, cluster
        self._fragments_of = shards_of(config.sync.shards, config.sync.fragments)
        if config.run.mode.sums_gradients:  # who conducts the ring knows where the model is
            self._fragments_of = {SYNCER: [p for each in self._fragments_of.values() for p in each]}
        self._evaluator_place: Place | None = None
        self._actors: dict[str, Handle] = {}
        policy = config.durability
        self.watchdog = Watchdog(policy.hang_s, policy.restarts, time.monotonic)
        self.evaluations: EvaluationSchedule
        self._uncounted: list[Unjudged] = []  # evaluations that the syncer has not heard of

    def start(self, owner: int) -> None:
        """Start them, or find those that an earlier fleet has started. `owner`: number of whom the
        run is.

        Errors: `RunFailed` if there is no place for the evaluator.
        """
        config, cluster = self._config, self._cluster
        self._evaluator_place = place = self._place() if config.monitor.evaluator.apart else None
        evaluator = cluster.start_evaluator(place)
        every_s = config.monitor.evaluate_every_s
        self.evaluations = EvaluationSchedule(
            cluster.evaluating(evaluator), every_s, time.monotonic
        )
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

    def _place(self) -> Place:
        """Machines of the evaluator's own."""
        machines, until_s = self._config.monitor.evaluator, time.monotonic() + PLACED_S
        place = self._cluster.reserved(APART) or self._cluster.reserve(machines, APART)
        while not place.ready():
            if time.monotonic() > until_s:
                place.give_back()
                raise RunFailed(
                    f"monitor.evaluator: {wish(machines)} cannot be had for {PLACED_S:g} s, others "
                    "have taken them; free them, or ask for less"
                )
            time.sleep(AGAIN_S)
        return place

    def begin(self) -> Layout:
        """Make the initial model, give each shard its fragments, and open the syncer."""
        layout = self._insist(EVALUATOR, "layout")
        for name, own in self._fragments_of.items():
            there, said = list[Fragment](), ""  # of a process that died meanwhile none are
            while missing := [p for p in own if p not in there]:
                there, said = self._seed(name, layout, missing[0])
            log.info("%s has its fragments%s%s", name, said and "; ", said)
        self._insist(SYNCER, "open", layout)
        self._cluster.tell(
            self._actors[EVALUATOR], "initial_loss"
        )  # which it keeps for the summary
        return layout

    def _seed(self, shard: str, layout: Layout, p: Fragment) -> tuple[list[Fragment], str]:
        """Have the shard fetch a fragment of the initial model, which never gets here."""
        while True:
            flat = self._cluster.promise(self._actors[EVALUATOR], "initial", p)
            try:
                return self._ask(shard, "seed", layout, p, flat)
            except Unavailable as error:
                log.warning("asking again: %s", error)
                time.sleep(AGAIN_S)

    def look(self, held: Mapping[Island, str]) -> tuple[View, RunStatus]:
        """What the syncer sees: to decide from, and for people. `held`: islands with devices, and
        their groups.

        Errors: `Unavailable`; what has ended the run.
        """
        seen = self._ask(SYNCER, "look", held)
        self.watchdog.look()
        return seen

    def stop(self, why: str) -> None:
        self._ask(SYNCER, "stop", why)

    def drain(self, island: Island, why: str) -> None:
        self._ask(SYNCER, "drain", island, why)

    def count_fault(self, victim: str) -> None:
        """Have the syncer count that something was broken on purpose; called from any thread."""
        within = patience(CALL_TIMEOUT_S)
        self._cluster.ask(self._actors[SYNCER], "fault", Island(victim), meanwhile=within)

    def judge(self) -> None:
        """Have the model judged now and then; that it could not be is counted, and no more."""
        if (why := self.evaluations.look()) is not None:
            self._uncounted.append(why)
        while self._uncounted:
            self._ask(SYNCER, "unjudged", self._uncounted[0])
            self._uncounted.pop(0)

    def verdict(
        self, versions: Sequence[Version], enough: Callable[[], bool]
    ) -> tuple[dict[str, float | None], str | None]:
        """The figures of the last model, and why one of them is missing, until it is `enough`."""

        def over() -> bool:
            self.watchdog.look()  # also of the evaluator
            return enough()

        return self.evaluations.verdict(versions, over)

    def close(self) -> dict[str, object]:
        """End the tape; the figures that the syncer has measured."""
        return self._ask(SYNCER, "close")

    def public(self, meanwhile: Callable[[], None] | None = None) -> Iterator[tuple[Version, Flat]]:
        """The public fragments of the run, in order, one after another.

        `meanwhile`: for callers that are not the keeper: called while an answer is waited for.
        Errors: `Unavailable`, also while a shard that is back has no model yet.
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
        """End all of them that are there."""
        for name in dict.fromkeys((SYNCER, *self._fragments_of, EVALUATOR)):
            if (actor := self._cluster.find(name)) is not None:
                self._cluster.end(actor)
        if (place := self._evaluator_place or self._cluster.reserved(APART)) is not None:
            place.give_back()

    def _ask(self, name: str, method: str, *arguments: object) -> Any:
        """Return an actor's answer; one that hangs meanwhile is restarted, and is `Unavailable`."""
        self.watchdog.waits_for(name)
        looks = partial(self.watchdog.look, waiting_for=name)
        return self._cluster.ask(self._actors[name], method, *arguments, meanwhile=looks)

    def _insist(self, name: str, method: str, *arguments: object) -> Any:
        """Ask again while the actor is being restarted, since nothing can go on without."""
        while True:
            try:
                return self._ask(name, method, *arguments)
            except Unavailable as error:
                log.warning("asking again: %s", error)
                time.sleep(AGAIN_S)


def patience(within_s: float) -> Callable[[], None]:
    """Return what raises `Unavailable` when it is called later than this."""
    end_s = time.monotonic() + within_s

    def meanwhile() -> None:
        if time.monotonic() > end_s:
            raise Unavailable(f"no answer for {within_s:g} s")

    return meanwhile
