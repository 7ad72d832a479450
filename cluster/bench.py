"""`archipelago bench`: figures, each against its baseline, interleaved, with their spread."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster.config import Config, parse
from cluster.files import read_figures
from coordinator.errors import RunFailed

CONFIDENCE = 0.95
DEMO_ISLANDS = 4


@dataclass(frozen=True, slots=True)
class Median:
    """A median with a distribution-free interval from order statistics.

    `coverage` is the probability that the interval holds the true median; below 0.95 when there
    are fewer than six samples, whose whole range it then is.
    """

    value: float
    low: float
    high: float
    coverage: float
    samples: int


def median(samples: Sequence[float]) -> Median:
    ordered, n = sorted(samples), len(samples)
    best = 0
    for cut in range((n - 1) // 2 + 1):
        if _coverage(n, cut) >= CONFIDENCE:
            best = cut
    return Median(
        statistics.median(ordered), ordered[best], ordered[n - 1 - best], _coverage(n, best), n
    )


def told(name: str, middle: Median) -> dict[str, float]:
    """As a bench prints it."""
    return {name: middle.value, f"{name}_low": middle.low, f"{name}_high": middle.high}


def _coverage(n: int, cut: int) -> float:
    """That the median lies between the order statistics `cut` places from either end."""
    return 1 - 2 * sum(comb(n, k) for k in range(cut + 1)) / 2**n


def parity(
    *,
    preset: str,
    steps: int,
    seeds: int,
    overrides: Sequence[str],
    lock_step: bool,
    say: Callable[[str], None],
) -> dict[str, object]:
    """Held-out loss of islands with overlap and of data-parallel training, at equal tokens.

    For each seed in turn: the islands for `steps` syncer steps, then data-parallel in one process
    for as many steps of the islands' summed batch as they trained tokens. Same model, corpus,
    optimizer, schedule and held-out text. `lock_step`: the islands in step and in one process, to
    see what the method costs without the system.
    """
    decoupled, baseline, gaps = list[float](), list[float](), list[float]()
    for seed in range(seeds):
        config = demo(preset, steps=steps, seed=seed, overrides=overrides)
        with TemporaryDirectory(prefix="archipelago-parity-") as folder:
            path = Path(folder) / "parity.toml"
            path.write_text(config.toml())
            run = ["-m", "cluster", "run", str(path), "--json", "--run-dir", f"{folder}/run"]
            ours = child(["-m", "cluster.lockstep", str(path)] if lock_step else run)
            batch = sum(group.count * group.batch_size for group in config.islands)
            equal = round(ours["tokens_trained"] / (batch * config.data.window))
            theirs = child(["-m", "cluster.data_parallel", str(path), str(equal)])
        decoupled.append(ours["heldout_loss"])
        baseline.append(theirs["heldout_loss"])
        gaps.append(100 * (ours["heldout_loss"] / theirs["heldout_loss"] - 1))
        say(
            f"seed {seed}: data-parallel {baseline[-1]:.4f} after {equal} steps, "
            f"decoupled {decoupled[-1]:.4f}, gap {gaps[-1]:+.2f} %"
        )
    result: dict[str, object] = {"steps": steps, "samples": seeds}
    for name, samples in (
        ("data_parallel_loss", baseline),
        ("decoupled_loss", decoupled),
        ("gap_percent", gaps),
    ):
        middle = median(samples)
        result |= told(name, middle)
        result["coverage"] = middle.coverage
    return result


def demo(preset: str, *, steps: int, seed: int, overrides: Sequence[str]) -> Config:
    """The shipped defaults on four islands of this machine, without faults."""
    tables = {
        "run": {"steps": steps, "seed": seed},
        "task": {"preset": preset},
        "islands": [{"group": "local", "count": DEMO_ISLANDS, "resources": {"CPU": 0.4}}],
    }
    return parse(tables, origin="bench", overrides=overrides)


def child(arguments: Sequence[str]) -> dict[str, float]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunFailed(
            f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return read_figures(done.stdout.splitlines()[-1])
