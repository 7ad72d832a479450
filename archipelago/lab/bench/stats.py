"""Common helpers of the benchmarks: medians with intervals, the demo's configuration, processes."""

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
"""The least probability with which an interval holds the true median."""
DEMO_ISLANDS = 4
"""The number of islands in the demo."""


@dataclass(frozen=True, slots=True)
class Median:
    """A median with a distribution-free interval from order statistics."""

    value: float
    """The median of the samples."""
    low: float
    """The lower end of the interval."""
    high: float
    """The upper end of the interval."""
    coverage: float
    """The probability that the interval holds the true median.

    It is below 0.95 for fewer than six samples; the interval is then their whole range.
    """
    samples: int
    """The number of samples."""


def median(samples: Sequence[float]) -> Median:
    """Return the median of at least one sample, with its narrowest interval of `CONFIDENCE`."""
    ordered, n = sorted(samples), len(samples)
    best = 0
    for cut in range((n - 1) // 2 + 1):
        if _coverage(n, cut) >= CONFIDENCE:
            best = cut
    return Median(
        statistics.median(ordered), ordered[best], ordered[n - 1 - best], _coverage(n, best), n
    )


def interval_of(name: str, middle: Median) -> dict[str, float]:
    """Return the median and the ends of its interval under the names that a benchmark prints."""
    return {name: middle.value, f"{name}_low": middle.low, f"{name}_high": middle.high}


def _coverage(n: int, cut: int) -> float:
    """Return the probability that a median's interval holds the true median.

    The interval is that between the order statistics `cut` places from either end of `n` samples.
    """
    return 1 - 2 * sum(comb(n, k) for k in range(cut + 1)) / 2**n


FOUR: Sequence[Mapping[str, object]] = (
    {"group": "local", "count": DEMO_ISLANDS, "resources": {"CPU": 0.4}},
)
"""The island group of the demo: four islands on this machine."""


def demo(
    preset: str,
    *,
    steps: int,
    seed: int,
    overrides: Sequence[str],
    islands: Sequence[Mapping[str, object]] = FOUR,
) -> Config:
    """Return the default configuration on islands of this machine, without faults."""
    from cluster.config.load import parse  # `bench accelerator` needs medians without pydantic

    tables = {
        "run": {"steps": steps, "seed": seed},
        "task": {"preset": preset},
        "islands": [*islands],
    }
    return parse(tables, origin="bench", overrides=overrides)


def child(arguments: Sequence[str]) -> dict[str, float]:
    """Run `python ARGUMENTS`, and return the figures on the last line that it prints.

    Errors: `RunFailed` if it fails.
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
    """Run this command, and return its result once it has ended.

    Each Ctrl-C is passed on to the command, which is then waited for, so that it can stop the
    processes that it has started. A run takes a second Ctrl-C as a request to stop at once.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, process_group=0
    )
    interrupted = False
    while True:
        try:
            output, errors = process.communicate()
            break
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(signal.SIGINT)
    if interrupted:
        raise KeyboardInterrupt
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
