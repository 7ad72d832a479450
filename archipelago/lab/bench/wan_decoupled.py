"""Decoupled training over a network of regions: a real syncer and shards, and paced stand-ins.

The process runs in the first region, where syncer and shards are; each region has one stand-in
(`stub_learner`) with the whole protocol: real encoding, real merges, real transfers. A step is idle
time. `python -m archipelago.lab.bench.wan_decoupled JSON`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from archipelago.lab.bench.embedded_core import BenchStage, staged
from archipelago.lab.bench.scale import ended
from archipelago.lab.bench.stub_actor import CrewActor
from archipelago.lab.bench.stub_material import Material, StubPace
from archipelago.lab.bench.wan_samples import over_periods, rate_interval, run_sample
from archipelago.lab.wan.nodes import LABEL
from cluster.actors.call_errors import answer
from cluster.config.load import parse
from cluster.config.rule import schedule_of
from cluster.config.schema import Config
from cluster.names import island_actor, seat_of
from cluster.storage.files import json_text
from coordinator.errors import RunFailed
from coordinator.fragments import Layout, Leaf, cut
from coordinator.protocol import Island
from islands.own_wire import built_in

FOREVER = 10**9
"""A number of steps that is never reached."""
ALIVE_S = 120.0
"""Seconds within which all stand-ins must step."""
BATCH, WINDOW = 8, 128
BATCH_TOKENS = BATCH * WINDOW
"""The tokens of one step of one island, with every method."""


@dataclass(frozen=True, slots=True)
class DecoupledPlan:
    """The model, the regions and the duration of a measurement."""

    address: str
    """The address of the Ray cluster."""
    regions: tuple[str, ...]
    parameters: int
    every: int
    """H, and the number of fragments."""
    wire: str
    quorum: int
    step_s: float
    warm_s: float
    for_s: float
    periods: int
    """Periods of H steps in `for_s`."""
    spread: bool = False
    """Whether each region has a shard; otherwise one in the first region has all fragments."""


def config_of(plan: DecoupledPlan) -> Config:
    """Return the configuration: one island in each region."""
    count = len(plan.regions)
    tables = {
        "run": {"steps": FOREVER},
        "task": {"preset": "byte-tiny"},  # never built: the learners are stubs
        "sync": {
            "quorum": plan.quorum,
            "every": plan.every,
            "fragments": plan.every,
            "wire_up": plan.wire,
            "wire_down": plan.wire,
            "shards": count if plan.spread else 1,
        },
        "data": {"window": WINDOW},
        "islands": [
            {"group": "crew", "count": count, "batch_size": BATCH, "resources": {"CPU": 0.0}}
        ],
    }
    return parse(tables, origin="bench wan", overrides=())


def measure(plan: DecoupledPlan) -> dict[str, Any]:
    """Train, and return the figures of the measured seconds.

    Errors: `RunFailed` if the stand-ins do not step, or one of them fails.
    """
    config = config_of(plan)
    rows = -(-plan.parameters // plan.every // 1024)
    leaves = [Leaf(f"block-{p}", (rows, 1024)) for p in range(plan.every)]
    layout = cut(leaves, plan.every)
    flats = [np.zeros(size, np.float32) for size in layout.sizes]
    labels = {LABEL: f"in({','.join(plan.regions)})"} if plan.spread else None
    with staged(config, layout, flats, plan.address, labels) as stage:
        crews = [_crew(stage, number, region) for number, region in enumerate(plan.regions)]
        material = _material(config, layout)
        for number, crew in enumerate(crews):
            island = Island(f"crew-{number}.0")
            answer(crew.board.remote([island], material, StubPace(plan.step_s)), ALIVE_S)
        end_s = time.monotonic() + ALIVE_S
        while stage.status()["alive"] < len(crews):
            [answer(crew.take.remote()) for crew in crews]
            if time.monotonic() > end_s:
                raise RunFailed(f"{stage.status()['alive']} of {len(crews)} stand-ins step")
            time.sleep(0.2)
        time.sleep(plan.warm_s)
        figures = _window(stage, crews, plan, material.tokens)
        ends = ended(stage, crews, StubPace(plan.step_s))
        return figures | {"rejected_contributions": ends["rejected_contributions"]}


def _crew(stage: BenchStage, number: int, region: str) -> Any:
    """Start the process of one stand-in in its region."""
    name = island_actor(seat_of(Island(f"crew-{number}")))
    options = stage.home.options(name, {}) | {"label_selector": {LABEL: region}, "num_cpus": 0}
    actor = ray.remote(CrewActor).options(**options)
    return actor.remote(stage.config.model_dump_json(), stage.home.namespace)


def _material(config: Config, layout: Layout) -> Material:
    """Return the constant parts of the stand-ins; all deltas are the same random numbers."""
    delta = np.random.default_rng(0).standard_normal(max(layout.sizes), np.float32)
    return Material(
        layout=layout,
        schedule=schedule_of(config),
        wire=built_in(config.sync.wire_up),
        deltas=tuple(delta[:size] * np.float32(1e-3) for size in layout.sizes),
        windows=BATCH,
        tokens=BATCH_TOKENS,
        lease_windows=config.data.lease_windows,
        carries=config.sync.adopt == "carry",
    )


def _window(
    stage: BenchStage, crews: Sequence[Any], plan: DecoupledPlan, tokens: int
) -> dict[str, Any]:
    """Measure `for_s` seconds; `began_s` is their begin by the monotonic clock."""
    [answer(crew.take.remote()) for crew in crews]
    before, began_s = stage.status(), time.monotonic()
    samples = [run_sample(before, began_s)]
    for period in range(1, plan.periods + 1):
        time.sleep(max(0.0, began_s + plan.for_s * period / plan.periods - time.monotonic()))
        samples.append(run_sample(stage.status(), time.monotonic()))
    after, seconds = stage.status(), time.monotonic() - began_s
    steps = sum(answer(crew.take.remote()).steps for crew in crews)
    stepped_s = time.monotonic() - began_s

    def grown(name: str) -> float:
        first: Any = before["figures"]
        last: Any = after["figures"]
        return last[name] - first[name]

    merged, merges = grown("tokens_merged"), after["merges"] - before["merges"]
    possible = len(crews) * tokens * stepped_s / plan.step_s
    trained = steps * tokens / stepped_s * seconds
    return {
        "began_s": began_s,
        "seconds": seconds,
        "tokens_per_s": merged / seconds,
        "trained_tokens_per_s": steps * tokens / stepped_s,
        **rate_interval(samples),
        **over_periods(samples),
        "bytes_per_token": (grown("up_bytes") + grown("down_bytes")) / max(1.0, trained),
        "compute_utilisation": steps * tokens / possible,
        "merges": merges,
        "effective_every": plan.every * seconds / plan.step_s / max(1, merges),
        "discarded_fraction": grown("tokens_discarded") / max(1.0, merged),
    }


def plan_from(text: str) -> DecoupledPlan:
    """Return the plan that a process was started with."""
    fields: Any = json.loads(text)
    fields["regions"] = tuple(fields["regions"])
    return DecoupledPlan(**fields)


def main(arguments: Sequence[str]) -> None:
    """Measure by the plan in the first argument, in JSON, and print the figures as JSON."""
    print(json_text(measure(plan_from(arguments[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
