"""What all of `archipelago bench` need: medians with their spread, and the demo's configuration."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

from coordinator.errors import RunFailed

if TYPE_CHECKING:
    from cluster.config.schema import Config

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


FOUR: Sequence[Mapping[str, object]] = (
    {"group": "local", "count": DEMO_ISLANDS, "resources": {"CPU": 0.4}},
)
"""Islands of this machine."""


def demo(
    preset: str,
    *,
    steps: int,
    seed: int,
    overrides: Sequence[str],
    islands: Sequence[Mapping[str, object]] = FOUR,
) -> Config:
    """The shipped defaults on islands of this machine, without faults."""
    from cluster.config.load import parse  # `bench accelerator` needs medians without pydantic

    tables = {
        "run": {"steps": steps, "seed": seed},
        "task": {"preset": preset},
        "islands": [*islands],
    }
    return parse(tables, origin="bench", overrides=overrides)


def child(arguments: Sequence[str]) -> dict[str, float]:
    """The figures that a Python of its own prints, as `python ARGUMENTS`.

    Errors: `RunFailed`.
    """
    from cluster.storage.files import read_figures

    done = finished([sys.executable, *arguments], stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise RunFailed(
            f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return read_figures(done.stdout.splitlines()[-1])


def finished(
    command: Sequence[str], *, stderr: int | None = None
) -> subprocess.CompletedProcess[str]:
    """This command, once it has ended. It hears each Ctrl-C from us and is waited for, so that it
    can stop what it has started; a run takes the second one for "at once"."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, process_group=0
    )
    interrupted = False
    while True:
        try:
            out, err = process.communicate()
            break
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(signal.SIGINT)
    if interrupted:
        raise KeyboardInterrupt
    return subprocess.CompletedProcess(command, process.returncode, out, err)
