"""Measure when an island whose deltas have a flipped sign is on trial, and what it costs.

    python -m tests.flipped [--islands 2] [--fragments 8] [--pairs 5] [--clean 2] [--steps 400]
        [--drift 5] [--unlike]

The rules, the shell and the training are those of a run, in virtual time (`archipelago.lab`). Each
pair has the same new seed: in one run the last island's deltas are negated from step FROM on, in
the other one that island is drained then. The script prints the merges of the island until it is on
trial, the losses and their difference. Clean runs come first, each with the least cosine of a
contribution to the outer momentum. The script exits with 1 if a bound is missed, or an island of a
clean run is on trial or has a contribution refused.

With `--drift P` the deltas are not negated: each one is P percent longer than the one before, in
later lives of the island too. The script prints the largest norm per step that was merged before
the first quarantine, as a multiple of the median of the others' latest norms of that fragment (the
bound is MOST_FACTOR), and the largest one of later lives. With `--unlike` half of the islands
have a quarter of the batch, and every second one a quarter of the speed.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from archipelago.lab.training.loss_curve import LossCurve
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.world import TrainingWorld
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.workers.evaluator import Evaluator
from coordinator.protocol import (
    Arrived,
    ContributionId,
    Discard,
    Effect,
    Event,
    Fate,
    Fragment,
    Island,
    Merged,
    Publish,
)

FROM = 60
MOST_MERGES, MOST_PERCENT = 20, 2.0
"""Merges within which the island must be on trial, and its largest effect on the final loss."""
MOST_FACTOR = 10.0
"""The largest norm of a drifting island that may be merged, as a multiple of the others' median."""


class WatchedWorld(TrainingWorld):
    """A run that counts the merges of one island after the fault, until it is on trial."""

    def watch(self, island: Island, growth: float) -> None:
        self.island, self.merges, self.noticed = island, 0, False
        self.least, self.refused = math.inf, 0
        self.growth, self.largest = growth, [0.0, 0.0]
        self.norms: dict[tuple[Fragment, Island], float] = {}
        self.ratios: dict[ContributionId, float] = {}

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        super().append(now_s, event, effects)
        if isinstance(event, Arrived):
            self.measure(event)
        for effect in effects:
            self.refused += isinstance(effect, Discard) and effect.fate is Fate.GATE
            if isinstance(effect, Publish):
                found = [self.ratios.get(each, 0.0) for each in effect.merged]
                place = int(self.noticed)
                self.largest[place] = max(self.largest[place], *found, 0.0)
        if isinstance(event, Merged):
            self.least = min(self.least, *(x for x in event.aligned if x is not None), math.inf)
        state = self.syncer.state
        member = state.members.get(self.island)
        if state.t < FROM or member is None or self.noticed:
            return
        if member.trial or member.quarantines:
            self.noticed = True
            return
        published = [each for each in effects if isinstance(each, Publish)]
        self.merges += sum(
            any(each.life.island == self.island for each in order.merged) for order in published
        )

    def measure(self, event: Arrived) -> None:
        """Note the norm of a contribution; the next one of the drifting island is longer."""
        id_, norm = event.contribution.id, event.contribution.norm_per_step
        self.norms[id_.fragment, id_.life.island] = norm
        if id_.life.island != self.island or self.syncer.state.t < FROM:
            return
        others = [
            each
            for (fragment, island), each in self.norms.items()
            if fragment == id_.fragment and island != self.island
        ]
        if others:
            self.ratios[id_] = norm / statistics.median(others)
        if (process := self.network.places[self.island].process) is not None:
            process.spoil *= self.growth


@dataclass(frozen=True, slots=True)
class Shape:
    islands: int
    fragments: int
    steps: int
    drift: float
    unlike: bool


def config_of(shape: Shape, seed: int, kind: str) -> Config:
    fault: dict[str, object] = {
        "at_step": FROM,
        "island": f"local-{shape.islands - 1}",
        "kind": kind,
    }
    if kind == "scale":
        fault["factor"] = 1.0 if shape.drift else -1.0
    groups: list[dict[str, object]] = [{"group": "local", "count": shape.islands}]
    if shape.unlike:
        groups = [
            {
                "group": f"g{number}",
                "batch_size": 2 if number < shape.islands // 2 else 8,
                "speed": 0.25 if number % 2 else 1.0,
            }
            for number in range(shape.islands)
        ]
        fault["island"] = f"g{shape.islands - 1}-0"
    tables = {
        "run": {"steps": shape.steps, "seed": seed},
        "task": {"preset": "byte-tiny"},
        "sync": {"quorum": 1, "every": 8, "fragments": shape.fragments},
        "islands": groups,
        "faults": {"plan": [fault] if kind else []},
    }
    return parse(tables, origin="flipped", overrides=())


def run(shape: Shape, seed: int, kind: str) -> tuple[float, WatchedWorld]:
    config = config_of(shape, seed, kind)
    world = WatchedWorld(config, Timing(), LossCurve(Evaluator(config), 0))
    name = "g{}-0" if shape.unlike else "local-{}"
    world.watch(Island(name.format(shape.islands - 1)), 1 + shape.drift / 100 if kind else 1.0)
    return float(str(world.run().figures["heldout_loss"])), world


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--islands", type=int, default=2)
    parser.add_argument("--fragments", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--clean", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--drift", type=float, default=0.0, metavar="PERCENT")
    parser.add_argument("--unlike", action="store_true")
    options = parser.parse_args()
    shape = Shape(options.islands, options.fragments, options.steps, options.drift, options.unlike)
    missed = 0
    for _ in range(options.clean):
        seed = random.SystemRandom().randrange(10**6)
        _, world = run(shape, seed, "")
        members = world.syncer.state.members.values()
        suspects = [m.life.island for m in members if m.quarantines or m.trial]
        missed += bool(suspects)
        missed += world.refused > 0
        text = f"on trial: {', '.join(suspects) or 'none'}, least cosine {world.least:.2f}, "
        text += f"{world.refused} contributions refused"
        print(f"seed {seed}: clean, {text}", flush=True)
    for _ in range(options.pairs):
        seed = random.SystemRandom().randrange(10**6)
        flipped, world = run(shape, seed, "scale")
        alone, _ = run(shape, seed, "drain")
        percent = 100 * (flipped / alone - 1)
        noticed = world.noticed and world.merges <= MOST_MERGES
        is_good = world.largest[0] < MOST_FACTOR if shape.drift else noticed
        missed += not is_good or percent > MOST_PERCENT
        print(
            f"seed {seed}: {'' if world.noticed else 'not '}on trial after {world.merges} merges, "
            f"longest merged before: {world.largest[0]:.1f} of the others, and in later lives: "
            f"{world.largest[1]:.1f}, "
            f"loss {flipped:.4f}, without the island {alone:.4f}: {percent:+.2f} %",
            flush=True,
        )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
