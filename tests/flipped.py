"""Measure when an island whose deltas have a flipped sign is on trial, and what it costs.

    python -m tests.flipped [--islands 2] [--fragments 8] [--pairs 5] [--clean 2] [--steps 400]

The rules, the shell and the training are those of a run, in virtual time (`archipelago.lab`). Each
pair has the same new seed: in one run the last island's deltas are negated from step FROM on, in
the other one that island is drained then. The script prints the merges of the island until it is on
trial, the losses and their difference. Clean runs come first, each with the least cosine of a
contribution to the outer momentum. The script exits with 1 if a bound is missed, or an island of a
clean run is on trial.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from archipelago.lab.training.loss_curve import LossCurve
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.world import TrainingWorld
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.workers.evaluator import Evaluator
from coordinator.protocol import Effect, Event, Island, Merged, Publish

FROM = 60
MOST_MERGES, MOST_PERCENT = 20, 2.0
"""Merges within which the island must be on trial, and its largest effect on the final loss."""


class WatchedWorld(TrainingWorld):
    """A run that counts the merges of one island after the fault, until it is on trial."""

    def watch(self, island: Island) -> None:
        self.island, self.merges, self.noticed = island, 0, False
        self.least = math.inf

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        super().append(now_s, event, effects)
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


@dataclass(frozen=True, slots=True)
class Shape:
    islands: int
    fragments: int
    steps: int


def config_of(shape: Shape, seed: int, kind: str) -> Config:
    fault: dict[str, object] = {
        "at_step": FROM,
        "island": f"local-{shape.islands - 1}",
        "kind": kind,
    }
    if kind == "scale":
        fault["factor"] = -1.0
    tables = {
        "run": {"steps": shape.steps, "seed": seed},
        "task": {"preset": "byte-tiny"},
        "sync": {"quorum": 1, "every": 8, "fragments": shape.fragments},
        "islands": [{"group": "local", "count": shape.islands}],
        "faults": {"plan": [fault] if kind else []},
    }
    return parse(tables, origin="flipped", overrides=())


def run(shape: Shape, seed: int, kind: str) -> tuple[float, WatchedWorld]:
    config = config_of(shape, seed, kind)
    world = WatchedWorld(config, Timing(), LossCurve(Evaluator(config), 0))
    world.watch(Island(f"local-{shape.islands - 1}"))
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
    options = parser.parse_args()
    shape, missed = Shape(options.islands, options.fragments, options.steps), 0
    for _ in range(options.clean):
        seed = random.SystemRandom().randrange(10**6)
        _, world = run(shape, seed, "")
        members = world.syncer.state.members.values()
        suspects = [m.life.island for m in members if m.quarantines or m.trial]
        missed += bool(suspects)
        text = f"on trial: {', '.join(suspects) or 'none'}, least cosine {world.least:.2f}"
        print(f"seed {seed}: clean, {text}", flush=True)
    for _ in range(options.pairs):
        seed = random.SystemRandom().randrange(10**6)
        flipped, world = run(shape, seed, "scale")
        alone, _ = run(shape, seed, "drain")
        percent = 100 * (flipped / alone - 1)
        is_bad = not world.noticed or world.merges > MOST_MERGES or percent > MOST_PERCENT
        missed += is_bad
        print(
            f"seed {seed}: on trial after {world.merges if world.noticed else 'no end of'} merges, "
            f"loss {flipped:.4f}, without the island {alone:.4f}: {percent:+.2f} %",
            flush=True,
        )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
