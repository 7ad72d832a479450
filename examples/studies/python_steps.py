"""Compare the steps per second of a run in TOML, through Python, and of a loop with `ap.join`.

    python examples/studies/python_steps.py [--pairs 20] [--steps 600] [--json]

All three train the same model with the same loss and the same Adam on one island of this machine,
each in processes of its own. They take turns, and the first of each turn changes. A rate is that of
the tokens between 40 % of the steps and their end, so that starts, compilations and the first evaluation do not
count.
The exit code is 1 unless both intervals of 95 %, of at least six pairs, are within 0.98 to 1.02.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import optax

import archipelago as ap
from archipelago.examples.loop_jax import init, loss
from archipelago.lab.bench.stats import interval_of, median

ALLOWED = 0.02
LEAST_PAIRS = 6
"""The fewest pairs whose extremes are an interval of 95 % for the median."""
RATE, WARMUP = 6e-3, 20
WAYS = ("toml", "python", "join")
ADAM = optax.scale_by_adam()


def config(steps, run_dir):
    """Return the configuration of the first two ways; a loop has an optimizer of its own."""
    return {
        "run": {"steps": steps, "name": Path(run_dir).name, "dir": str(Path(run_dir).parent)},
        "data": {"source": "python-stdlib", "window": 64},
        "optimizer": {
            "target": "optax:adam",
            "options": {"learning_rate": 1.0},
            "learning_rate": RATE,
            "warmup_steps": WARMUP,
        },
        "sync": {"every": 8, "fragments": 4},
        "islands": [{"count": 1, "batch_size": 32}],
        "monitor": {"evaluate_every_s": 600.0, "refresh_s": 0.25},
    }


def task(data: ap.DataSpec) -> ap.Task:
    """Return the task of the first two ways."""
    return ap.text_task(init, loss, data)


def with_loop(data: ap.DataSpec) -> ap.Task:
    """Return the task with the loop of the third way."""
    return replace(task(data), loop=train)


def train():
    """Train on one island; the step is that of the other ways."""
    update = jax.jit(updated, donate_argnums=1)
    island = ap.join()
    params = island.params
    moments = ADAM.init(params)
    while island.running:
        batch = island.batch
        rate = RATE * min(1.0, (island.clock + 1) / WARMUP)
        params, moments, value = update(params, moments, batch, rate)
        params = island.step(params, batch[:, 1:].size, loss=value)


def updated(params, moments, batch, rate):
    """Return parameters and moments after a step, and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(params, batch)
    directions, moments = ADAM.update(gradients, moments)
    return jax.tree.map(lambda p, d: p - rate * d, params, directions), moments, value


def tokens_per_s(run_dir, steps):
    """Return the rate of a run from its records."""
    rows = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["t"] >= 0.4 * steps and row["phase"] == "running"]
    first, last = rows[0], rows[-1]
    return (last["tokens_trained"] - first["tokens_trained"]) / (last["unix_s"] - first["unix_s"])


def measured(way, steps, folder):
    """Start one run in a new process; return its tokens per second."""
    run_dir = Path(folder) / f"{way}-{time.time_ns()}"
    if way == "toml":
        file = Path(folder) / "run.toml"
        file.write_text(ap.parse_config(config(steps, run_dir) | {"task": TARGET}).toml())
        command = [sys.executable, "-m", "archipelago", "run", str(file), "--json"]
    else:
        command = [sys.executable, __file__, "--one", way, str(run_dir), "--steps", str(steps)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr[-3000:]}")
    return tokens_per_s(run_dir, steps)


TARGET = {"target": "python_steps:task"}


def main():
    """Measure, print the result, and return the exit code."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--pairs", type=int, default=20)
    options.add_argument("--steps", type=int, default=600)
    options.add_argument("--json", action="store_true")
    options.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        way, run_dir = given.one
        tables = config(given.steps, run_dir)
        if way == "join":
            del tables["optimizer"]
        ap.run(tables, task={"python": task, "join": with_loop}[way])
        return 0
    rates = {way: [] for way in WAYS}
    with TemporaryDirectory(prefix="steps-") as folder:
        for pair in range(given.pairs):
            for way in WAYS[pair % 3 :] + WAYS[: pair % 3]:
                rates[way].append(measured(way, given.steps, folder))
            print(
                f"{pair + 1}: " + ", ".join(f"{w} {r[-1]:,.0f}" for w, r in rates.items()),
                file=sys.stderr,
                flush=True,
            )
    found = {"pairs": given.pairs, "tokens_per_s": {w: median(r).value for w, r in rates.items()}}
    for way in WAYS[1:]:
        pairs = [a / b for a, b in zip(rates[way], rates["toml"], strict=True)]
        found |= interval_of(way, median(pairs))
    print(json.dumps(found, indent=None if given.json else 2))
    ends = [found[key] for key in found if key.endswith(("_low", "_high"))]
    return int(given.pairs < LEAST_PAIRS or any(abs(end - 1) > ALLOWED for end in ends))


if __name__ == "__main__":
    sys.exit(main())
