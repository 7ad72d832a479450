"""Compare the steps per second of a run in TOML, through Python, and of a loop with `ap.join`.

    python examples/studies/python_steps.py [--pairs 20] [--window 4] [--json]

All three train the same model with the same loss and the same Adam, each on one island of this
machine in processes of its own. All are up together. In turn, one of them computes for a window of
some seconds, while the processes of the two others are halted (SIGSTOP). The first of a turn
changes. So a machine that is slower for a minute is slower for all three. The exit code is 1 unless
both intervals of 95 %, of at least six pairs, are within 0.98 to 1.02.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import optax
import psutil

import archipelago as ap
from archipelago.examples.loop_jax import init, loss
from archipelago.lab.bench.stats import interval_of, median

ALLOWED = 0.02
LEAST_PAIRS = 6
"""The fewest pairs whose extremes are an interval of 95 % for the median."""
RATE, WARMUP = 6e-3, 20
WAYS = ("toml", "python", "join")
ADAM = optax.scale_by_adam()
MARK = "ARCHIPELAGO_STEPS"
"""An environment variable that all processes of a run have."""
BEGIN_T = 40
"""The step from which a run counts as compiled."""
SETTLE_S = 0.5
"""Seconds after a halt that are not measured."""


def config(run_dir):
    """Return the configuration of the first two ways; a loop has an optimizer of its own."""
    return {
        "run": {"steps": 10**7, "name": run_dir.name, "dir": str(run_dir.parent)},
        "data": {"source": "python-stdlib", "window": 64},
        "optimizer": {
            "target": "optax:adam",
            "options": {"learning_rate": 1.0},
            "learning_rate": RATE,
            "warmup_steps": WARMUP,
        },
        "sync": {"every": 8, "fragments": 4},
        "islands": [{"count": 1, "batch_size": 32}],
        "durability": {"hang_s": 3600.0},
        "monitor": {"evaluate_every_s": 3600.0, "refresh_s": 0.1},
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


class Competitor:
    """One way of training: a run whose processes can be halted."""

    def __init__(self, way, folder):
        """Start the run."""
        self.way, self.run_dir = way, Path(folder) / way
        file = Path(folder) / f"{way}.toml"
        tables = config(self.run_dir)
        if way == "toml":
            tables["task"] = {"target": "python_steps:task"}
            file.write_text(ap.parse_config(tables).toml())
            command = ["-m", "archipelago", "run", str(file), "--json"]
        else:
            command = [__file__, "--one", way, str(self.run_dir)]
        self.mark = f"{way}-{os.getpid()}"
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), MARK: self.mark}
        self.log = (Path(folder) / f"{way}.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=self.log, stderr=self.log
        )

    def __enter__(self):
        """Return it."""
        return self

    def __exit__(self, *reason):
        """End all of its processes: in order, and after half a minute by force."""
        self.send(signal.SIGCONT)
        self.process.terminate()
        end_s = time.monotonic() + 30
        while self.processes() and time.monotonic() < end_s:
            self.process.poll()
            time.sleep(0.5)
        self.send(signal.SIGKILL)
        self.log.close()

    def processes(self):
        """Return the live processes of the run."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def send(self, number):
        """Send a signal to all processes."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(number)

    def rows(self):
        """Return the rows that the run has written."""
        file = self.run_dir / "metrics.jsonl"
        lines = file.read_text().rpartition("\n")[0] if file.exists() else ""
        return [json.loads(line) for line in lines.splitlines()]

    def wait(self):
        """Wait until it trains."""
        while not (rows := self.rows()) or rows[-1]["t"] < BEGIN_T:
            self.check()
            time.sleep(0.5)

    def check(self):
        """End this program with the run's own output if the run has ended."""
        if self.process.poll() is not None:
            self.log.seek(0)
            raise SystemExit(f"{self.way} failed:\n{self.log.read()[-3000:]}")

    def tokens_per_s(self, window_s):
        """Let it compute for a window, and return its rate."""
        self.send(signal.SIGCONT)
        began_s = time.time() + SETTLE_S
        time.sleep(SETTLE_S + window_s)
        rows = [row for row in self.rows() if row["unix_s"] >= began_s]
        self.send(signal.SIGSTOP)
        self.check()
        if len(rows) < 2:
            raise SystemExit(f"{self.way} wrote {len(rows)} rows in {window_s:g} s; use --window")
        first, last = rows[0], rows[-1]
        return (last["tokens_trained"] - first["tokens_trained"]) / (
            last["unix_s"] - first["unix_s"]
        )


def main():
    """Measure, print the result, and return the exit code."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--pairs", type=int, default=20)
    options.add_argument("--window", type=float, default=4.0, help="seconds")
    options.add_argument("--json", action="store_true")
    options.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        way, run_dir = given.one
        tables = config(Path(run_dir))
        if way == "join":
            del tables["optimizer"]
        ap.run(tables, task={"python": task, "join": with_loop}[way])
        return 0
    rates = {way: [] for way in WAYS}
    with TemporaryDirectory(prefix="steps-") as folder, ExitStack() as stack:
        runs = [stack.enter_context(Competitor(way, folder)) for way in WAYS]
        for run in runs:
            run.wait()
        for run in runs:
            run.send(signal.SIGSTOP)
        for pair in range(given.pairs):
            for run in runs[pair % 3 :] + runs[: pair % 3]:
                rates[run.way].append(run.tokens_per_s(given.window))
            shown = ", ".join(f"{way} {found[-1]:,.0f}" for way, found in rates.items())
            print(f"{pair + 1}: {shown}", file=sys.stderr, flush=True)
    found = {"pairs": given.pairs, "tokens_per_s": {w: median(r).value for w, r in rates.items()}}
    for way in WAYS[1:]:
        pairs = [a / b for a, b in zip(rates[way], rates["toml"], strict=True)]
        found |= interval_of(way, median(pairs))
    print(json.dumps(found, indent=None if given.json else 2))
    ends = [found[key] for key in found if key.endswith(("_low", "_high"))]
    return int(given.pairs < LEAST_PAIRS or any(abs(end - 1) > ALLOWED for end in ends))


if __name__ == "__main__":
    sys.exit(main())
