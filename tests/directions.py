"""Measure which islands are quarantined for the direction of their contributions.

    python -m tests.directions [--clean N] [--steps T] [--preset byte-tiny] [--pairs N]

Islands train in lock-step, with real training and the real measure and bound, but without Ray and
without a wire. The script first does N clean runs, every second one with skewed data: each island
reads files of its own kind. It exits with 1 if any island is quarantined. Then it does one run for
each fault, from step FROM on, and reports when the faulty island is noticed. It prints the seeds.
"""

from __future__ import annotations

import argparse
import email
import encodings
import random
import sys
import unittest
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cluster.config.load import parse
from cluster.config.rule import schedule_of
from cluster.config.schema import Config
from cluster.workers.assembly import optimizer_of, task_of
from cluster.workers.evaluator import Evaluator
from coordinator import norms as usual
from coordinator.alignment import AlignmentPart, directions
from coordinator.direction_gate import RUN, against, bound
from coordinator.fragments import Flat
from coordinator.kernels import frozen
from coordinator.merge import MergeRule, merge, norms
from coordinator.protocol import Island, Lease
from islands.adopt import AdoptRule, FragmentPort
from islands.inner import Inner

ISLANDS, FROM = 4, 50
MOST_MERGES, MOST_PERCENT = 20, 2.0
"""Merges within which a flipped sign must be noticed, and its largest effect on the final loss."""
KINDS = (None, encodings.__file__, unittest.__file__, email.__file__)
"""Sources of skewed data, one for each island: the whole standard library, tables, tests, mail."""

Fault = Callable[[Flat, int, np.random.Generator], Flat]


def stuck_bit(delta: Flat, step: int, chance: np.random.Generator) -> Flat:
    """Set an exponent bit in the first quarter of the elements: a factor of 16."""
    bits = delta.copy().view(np.uint32)
    bits[: bits.size // 4] |= np.uint32(1 << 25)
    return bits.view(np.float32)


FAULTS: dict[str, Fault] = {
    "sign flipped": lambda delta, step, chance: -delta,
    "times three": lambda delta, step, chance: 3 * delta,
    "drifts by 1 % a step": lambda delta, step, chance: delta * np.float32(1.01 ** (step - FROM)),
    "exponent bit stuck in a quarter": stuck_bit,
    "noise of the same length": lambda delta, step, chance: _as_long_as(
        delta, chance.standard_normal(delta.size).astype(np.float32)
    ),
}


def _as_long_as(delta: Flat, other: Flat) -> Flat:
    return other * np.float32(np.linalg.norm(delta) / np.linalg.norm(other))


@dataclass(slots=True)
class Seen:
    """The decisions of the rules about one run.

    They are the steps at which an island was quarantined for its direction, and first refused for
    its norm, and its cosines less the bound.
    """

    quarantined: dict[Island, int]
    refused: dict[Island, int]
    cosines: dict[Island, list[float]]
    loss: float


def play(config: Config, sources: list[str | None], fault: Fault | None, seed: int) -> Seen:
    """Train with the fault in the last island from step FROM on."""
    sync, evaluator = config.sync, Evaluator(config)
    layout, schedule = evaluator.layout, schedule_of(config)
    data = [replace_source(config, source) for source in sources]
    tasks = [task_of(each) for each in data]
    inner, port = Inner(tasks[0], optimizer_of(config)), FragmentPort(layout, AdoptRule.CARRY)
    masters = [np.array(flat) for flat in evaluator.initial()]
    size = config.islands[0].batch_size
    streams = [task.stream(size) for task in tasks]
    states = [inner.start(tasks[0].init(config.run.seed)) for _ in tasks]
    bases = [[np.array(flat) for flat in masters] for _ in tasks]
    names = [Island(f"i{i}") for i in range(len(tasks))]
    chance, leases = np.random.default_rng(seed), 0
    known = [usual.NONE] * sync.fragments
    against_now, seen = defaultdict[Island, int](int), Seen({}, {}, defaultdict(list), 0.0)
    for t in range(1, config.run.steps + 1):
        for i, stream in enumerate(streams):
            while stream.remaining < size:
                stream.add(Lease(leases))
                leases += 1
            states[i], _ = inner.step(states[i], stream.next(), t - 1)
        for p in schedule.due(after=t - 1, upto=t):
            sent = [port.take(state.params, p) for state in states]
            deltas = [np.asarray(flat) - base[p] for flat, base in zip(sent, bases, strict=True)]
            if fault is not None and t >= FROM:
                deltas[-1] = fault(deltas[-1], t, chance)
            admitted: dict[Island, Flat] = {}
            for name, delta in zip(names, deltas, strict=True):
                norm = float(np.linalg.norm(delta.astype(np.float64)))
                if not norm <= usual.limit(known[p], schedule.every):
                    seen.refused.setdefault(name, t)
                elif name not in seen.quarantined:
                    known[p] = usual.admit(known[p], norm, schedule.every)
                    admitted[name] = delta
            pieces, weight = layout.fragments[p], 1 / len(admitted)
            parts = [
                AlignmentPart(frozen(d), weight, norms(frozen(d), pieces))
                for d in admitted.values()
            ]
            found = directions(pieces, parts)
            cosines = {n: c for n, c in zip(admitted, found.cosines, strict=True) if c is not None}
            for name, low in against(cosines, {}, found.measured).items():
                others = {other: c for other, c in cosines.items() if other != name}
                seen.cosines[name].append(cosines[name] - bound(others, found.measured))
                against_now[name] = against_now[name] + 1 if low else 0
                if against_now[name] >= RUN:
                    seen.quarantined.setdefault(name, t)
            masters[p] += merge(
                MergeRule.MEAN, pieces, list(admitted.values()), [weight] * len(admitted)
            )
            for i, state in enumerate(states):
                placed = inner.place_flat(masters[p], masters[p].size)
                states[i] = replace(state, params=port.put(state.params, p, placed, sent[i]))
                bases[i][p] = masters[p].copy()
    seen.loss = evaluator.loss(masters, 64)
    return seen


def replace_source(config: Config, source: str | None) -> Config:
    if source is None:
        return config
    folder = str(Path(source).parent)
    return config.model_copy(update={"data": config.data.model_copy(update={"source": folder})})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--preset", default="byte-tiny")
    parser.add_argument(
        "--pairs", type=int, default=0, help="seeds with and without a flipped sign"
    )
    arguments = parser.parse_args()
    failed = 0
    first = random.randrange(10**6)
    if arguments.pairs:
        return pairs(arguments, first)
    for number in range(arguments.clean):
        seed, skewed = first + number, number % 2 == 1
        seen = play(
            a_config(arguments, seed), list(KINDS) if skewed else [None] * ISLANDS, None, seed
        )
        failed += bool(seen.quarantined)
        lowest = min(min(each) for each in seen.cosines.values())
        print(
            f"clean, seed {seed}{', skewed' if skewed else ''}: quarantined "
            f"{dict(seen.quarantined) or 'nobody'}, nearest to the bound {lowest:+.3f}, "
            f"below it in {share_below(seen):.1%} of the merges, loss {seen.loss:.4f}",
            flush=True,
        )
    for what, fault in FAULTS.items():
        seen = play(a_config(arguments, first), [None] * ISLANDS, fault, first)
        bad = Island(f"i{ISLANDS - 1}")
        others = {**seen.quarantined, **seen.refused}.keys() - {bad}
        failed += bool(others)
        at = {name: f"at step {step}" for name, step in seen.refused.items()}
        then = {name: f"at step {step}" for name, step in seen.quarantined.items()}
        print(
            f"{what} from step {FROM}, seed {first}: refused by the gate {at.get(bad, 'never')}, "
            f"quarantined {then.get(bad, 'never')}; others noticed: {sorted(others) or 'nobody'}; "
            f"loss {seen.loss:.4f}",
            flush=True,
        )
    return 1 if failed else 0


def pairs(arguments: argparse.Namespace, first: int) -> int:
    """Compare runs with and without a flipped sign; return 1 if one of them exceeds a limit."""
    failed = 0
    for seed in range(first, first + arguments.pairs):
        config = a_config(arguments, seed)
        clean = play(config, [None] * ISLANDS, None, seed)
        flipped = play(config, [None] * ISLANDS, FAULTS["sign flipped"], seed)
        bad = Island(f"i{ISLANDS - 1}")
        step = flipped.quarantined.get(bad)
        schedule, until = schedule_of(config), step or config.run.steps
        merges = sum(len(schedule.due(after=t - 1, upto=t)) for t in range(FROM, until + 1))
        more = 100 * (flipped.loss / clean.loss - 1)
        failed += step is None or merges > MOST_MERGES or more > MOST_PERCENT
        print(
            f"seed {seed}: quarantined after {merges if step else 'no number of'} merges, "
            f"loss {flipped.loss:.4f}, without the fault {clean.loss:.4f}: {more:+.2f} %",
            flush=True,
        )
    return 1 if failed else 0


def share_below(seen: Seen) -> float:
    every = [each for island in seen.cosines.values() for each in island]
    return sum(each < 0 for each in every) / len(every)


def a_config(arguments: argparse.Namespace, seed: int) -> Config:
    tables = {
        "run": {"steps": arguments.steps, "seed": seed},
        "task": {"preset": arguments.preset},
        "islands": [{"group": "local", "count": ISLANDS, "resources": {"CPU": 0.4}}],
    }
    return parse(tables, origin="directions")


if __name__ == "__main__":
    sys.exit(main())
