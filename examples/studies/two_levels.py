"""Compare merges on two levels, in a region and then globally, with one level (arXiv:2506.04531).

    python examples/studies/two_levels.py [--seeds 8] [--jobs N] [--dir runs/two-levels]

Eight islands in two regions of four train the built-in model byte-tiny. On two levels, the islands
of a region are merged every H1 steps into a model of the region, and the two regions' models every
H steps into the global one. Each level has an outer optimizer of its own. So a region sends one
change to the other one where four islands would send four.

A third way to send one change for each region needs no second level: one island in each region, on
all devices of the region and with the batches of all four.

All islands take their steps at the same time, and nothing is encoded, so that only the merges
differ. Each arm takes the best of its rates on a seed that is not reported, and then trains all
seeds. Finished cells are kept. `--steps 48 --seeds 2` is a trial of a minute.
"""

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import numpy as np

from archipelago.lab.study.paired_statistics import gaps_percent, mean
from archipelago.lab.training.compiled_parts import inner_of
from archipelago.lab.training.data_parallel import fragments_of
from cluster.config.load import parse
from cluster.workers.assembly import task_of
from cluster.workers.evaluator import Evaluator
from coordinator.outer import OuterRule, Turn, rate, step
from coordinator.protocol import Island, Lease
from islands.randomness import NO_DRAWS

REGIONS, PER_REGION, BATCH = 2, 4, 8
RATES = (17e-3, 34e-3, 68e-3)
MOMENTA = (0.3, 0.7)
"""The outer momenta of the regions that are tried; the global one is 0.7."""
SEARCH_SEED = 99


@dataclass(frozen=True)
class Arm:
    """How the islands of both regions are merged."""

    name: str
    every: int
    """H, the steps between two global merges."""
    regional: int | None = None
    """H1, the steps between two merges of a region; None: one level."""
    joined: bool = False
    """Whether a region is a single island with the batches of all its islands."""

    @property
    def changes(self) -> float:
        """The changes that a region sends to the other one, for 24 steps."""
        alone = self.joined or self.regional is not None
        return 24 / self.every * (1 if alone else PER_REGION)


ARMS = (
    Arm("one level, H = 24", 24),
    Arm("two levels, 3 and 6", 6, regional=3),
    Arm("two levels, 8 and 24", 24, regional=8),
    Arm("one island a region, H = 6", 6, joined=True),
    Arm("one island a region, H = 24", 24, joined=True),
)


class Trainer:
    """An island: an inner optimizer on its own leases, which are every n-th of all."""

    def __init__(self, setup: "Setup", number: int, count: int, batch: int) -> None:
        self.setup, self.next_lease, self.count = setup, number, count
        self.batch = batch
        self.stream = setup.task.stream(batch)
        self.state = setup.inner.start(setup.task.init(setup.config.run.seed))
        self.draws = NO_DRAWS._replace(seed=setup.config.run.seed, island=Island(f"local-{number}"))

    def train(self, clock: int) -> None:
        """Take one step."""
        while self.stream.remaining < self.batch:
            self.stream.add(Lease(self.next_lease))
            self.next_lease += self.count
        batch = self.stream.next()
        self.state, _ = self.setup.inner.step(self.state, batch, clock, self.draws.at(clock))

    @property
    def value(self) -> list[np.ndarray]:
        """The parameters."""
        return [np.array(leaf) for leaf in jax.tree.leaves(self.state.params)]

    def adopt(self, value: list[np.ndarray]) -> None:
        """Go on from these parameters, with the own moments."""
        params = jax.tree.unflatten(self.setup.structure, [leaf.copy() for leaf in value])
        self.state = replace(self.state, params=self.setup.inner.place(params))


class Server:
    """A model that is merged from those below every `every` steps, with an outer optimizer."""

    def __init__(self, below: list[Any], every: int, momentum: float) -> None:
        self.below, self.every = below, every
        self.rule = OuterRule(1.0, momentum, nesterov=True, as_long=True)
        self.value = [leaf.copy() for leaf in below[0].value]
        self.momenta = [np.zeros(leaf.size, np.float32) for leaf in self.value]

    def train(self, clock: int) -> None:
        """Take one step of all islands, and merge if it is time."""
        for each in self.below:
            each.train(clock)
        if (clock + 1) % self.every == 0:
            self.merge()

    def merge(self) -> None:
        """Take an outer step along the mean change, and hand the result down."""
        values = [each.value for each in self.below]
        for number, leaf in enumerate(self.value):
            flat, momentum = leaf.reshape(-1), self.momenta[number]
            mean = np.mean([value[number].reshape(-1) for value in values], axis=0)
            delta = (mean - flat).astype(np.float32)
            long = relative_rate(self.rule, delta, momentum)
            step(replace(self.rule, learning_rate=long), flat, momentum, delta)
        self.adopt(self.value)

    def adopt(self, value: list[np.ndarray]) -> None:
        """Go on from these parameters, with the own momentum."""
        self.value = [leaf.copy() for leaf in value]
        for each in self.below:
            each.adopt(value)


def relative_rate(rule: OuterRule, delta: np.ndarray, momentum: np.ndarray) -> float:
    """Return the rate with which the step is as long as the change (`learning_rate = "auto"`)."""
    return rate(
        rule, Turn(float(delta @ delta), float(delta @ momentum), float(momentum @ momentum))
    )


@dataclass(frozen=True)
class Setup:
    """The parts that all islands of a cell share."""

    config: Any
    task: Any
    inner: Any
    evaluator: Evaluator
    structure: Any

    @staticmethod
    @cache
    def of(seed: int, learning_rate: float, steps: int) -> "Setup":
        """Make them."""
        tables = {
            "run": {"steps": steps, "seed": seed},
            "task": {"preset": "byte-tiny"},
            "optimizer": {
                "momentum": 0.8, "floor_fraction": 0.01, "learning_rate": learning_rate,
            },
            "islands": [{"group": "local", "count": REGIONS * PER_REGION, "batch_size": BATCH}],
        }  # fmt: skip
        config = parse(tables, origin="two levels", overrides=())
        task = task_of(config)
        structure = jax.tree.structure(task.shapes)
        return Setup(config, task, inner_of(config, task), Evaluator(config), structure)


def trained(arm: Arm, seed: int, learning_rate: float, momentum: float, steps: int) -> float:
    """Train a cell and return its held-out loss."""
    setup = Setup.of(seed, learning_rate, steps)
    if arm.joined:
        islands = [Trainer(setup, n, REGIONS, PER_REGION * BATCH) for n in range(REGIONS)]
        server = Server(islands, arm.every, 0.7)
    else:
        count = REGIONS * PER_REGION
        islands = [Trainer(setup, n, count, BATCH) for n in range(count)]
        halves = [islands[n * PER_REGION :][:PER_REGION] for n in range(REGIONS)]
        below = islands
        if arm.regional is not None:
            below = [Server(half, arm.regional, momentum) for half in halves]
        server = Server(below, arm.every, 0.7)
    for clock in range(steps):
        server.train(clock)
    flats = fragments_of(setup.evaluator.layout, islands[0].state)
    return setup.evaluator.loss(flats)


def kept(folder: Path, arm: Arm, seed: int, rate: float, momentum: float, steps: int) -> float:
    """Return the held-out loss of a cell, which is trained unless its file is there."""
    name = f"{arm.name} rate {rate:g} momentum {momentum:g} seed {seed} steps {steps}"
    path = folder / (name.replace(", ", "-").replace(" = ", "").replace(" ", "-") + ".json")
    if not path.exists():
        loss = trained(arm, seed, rate, momentum, steps)
        cell = {"arm": arm.name, "rate": rate, "momentum": momentum, "seed": seed, "steps": steps}
        path.write_text(json.dumps({**cell, "heldout_loss": loss}))
    return json.loads(path.read_text())["heldout_loss"]


def main() -> None:
    """Search the rates, train all seeds, and print the comparison."""
    parser = argparse.ArgumentParser(description="Merges on two levels.")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=672, help="a multiple of 24")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="those tried")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--dir", type=Path, default=Path("runs/two-levels"))
    given = parser.parse_args()
    if given.steps % 24:
        parser.error(f"--steps {given.steps} is no multiple of 24, so not all arms end by a merge")
    given.dir.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        points = {
            arm: [(rate, momentum) for rate in given.rates
                  for momentum in (MOMENTA if arm.regional is not None else MOMENTA[-1:])]
            for arm in ARMS
        }  # fmt: skip

        def cells(chosen: dict[Arm, list[tuple[float, float]]], seeds: list[int]) -> Any:
            asked = {
                (arm, point, seed): pool.submit(
                    kept, given.dir, arm, seed, *point, given.steps
                )
                for arm, at in chosen.items() for point in at for seed in seeds
            }  # fmt: skip
            return {key: future.result() for key, future in asked.items()}

        searched = cells(points, [SEARCH_SEED])
        best = {
            arm: min(points[arm], key=lambda point, arm=arm: searched[arm, point, SEARCH_SEED])
            for arm in ARMS
        }
        seeds = [*range(given.seeds)]
        losses = cells({arm: [best[arm]] for arm in ARMS}, seeds)
    found = {arm: [losses[arm, best[arm], seed] for seed in seeds] for arm in ARMS}
    print(f"{'arm':28} {'changes':>8} {'rate':>7} {'momentum':>9} {'loss':>8}   above the first, %")
    for arm in ARMS:
        point = f"{best[arm][0]:7g} {best[arm][1]:9g} {np.mean(found[arm]):8.4f}"
        print(f"{arm.name:28} {arm.changes:8g} {point}   {gap_text(found[arm], found[ARMS[0]])}")
    print("two levels above one island a region, %")
    for two in (arm for arm in ARMS if arm.regional is not None):
        for one in (arm for arm in ARMS if arm.joined):
            print(f"{two.name} above {one.name}: {gap_text(found[two], found[one])}")


def gap_text(losses: list[float], against: list[float]) -> str:
    """Return the mean gap of pairs by seed in percent, with its interval."""
    gap = mean(gaps_percent(losses, against))
    return f"{gap.value:+.2f} ({gap.low:.2f} to {gap.high:.2f})"


if __name__ == "__main__":
    main()
