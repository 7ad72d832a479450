"""The source of the expected loss: a CSV file, an earlier run, or a law."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.config.monitor_tables import LossLaw
from cluster.config.schema import Config
from cluster.fleet.expected_loss import (
    Expectation,
    ExpectedByLaw,
    ExpectedCurve,
    ExpectedPoint,
    banded,
    curve_of,
)
from cluster.storage import runs
from cluster.storage.metrics_log import LOOKS
from coordinator.errors import UserMistake

KEY = "monitor.expected"
LAW = "law"
"""The value of `monitor.expected` that stands for a law."""
TEXT_VOCABULARY = 8192
"""The smallest vocabulary for which the published law is used; it was fitted with 32,000."""
LARGEST_BYTES = 64 * 10**6
"""The largest CSV file that is read."""


def expectation_of(config: Config, parameters: int) -> Expectation | None:
    """Return the expectation of a run with this many parameters; None if it has none.

    Errors: `UserMistake` with every problem of the source.
    """
    monitor = config.monitor
    if monitor.expected is None:
        return None
    if monitor.expected == LAW:
        return ExpectedByLaw(monitor.law or LossLaw(), parameters, monitor.expected_band)
    path = Path(monitor.expected).expanduser()
    if path.is_file():
        return _of_file(path, monitor.expected_band)
    return _of_run(monitor.expected, monitor.expected_band)


def check_expected(config: Config, vocabulary: int) -> list[str]:
    """Return the problems of `monitor.expected` on this machine, before anything starts.

    `vocabulary`: the size of the task's.
    """
    monitor = config.monitor
    if monitor.expected != LAW and monitor.law is not None:
        return [f'monitor.law is used by {KEY} = "{LAW}" alone; {KEY} is {monitor.expected!r}']
    if monitor.expected == LAW and monitor.law is None and vocabulary < TEXT_VOCABULARY:
        return [
            f'{KEY} = "{LAW}": the published law is of text with a vocabulary of 32,000, and this '
            f"task has {vocabulary}; write the five numbers of a law of its own in [monitor.law], "
            "or name an earlier run"
        ]
    try:
        expectation_of(config, parameters=1)
    except UserMistake as error:
        return [str(error)]
    return []


def _of_file(path: Path, band: float) -> ExpectedCurve:
    try:
        if (size := path.stat().st_size) > LARGEST_BYTES:
            raise UserMistake(f"{KEY}: {path} has {size:,} bytes; {LARGEST_BYTES:,} are the limit")
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [*csv.DictReader(file, skipinitialspace=True)]
    except OSError as error:
        raise UserMistake(f"{KEY}: {path} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserMistake(f"{KEY}: {path} is not a CSV file: {error}") from error
    curve, problems = curve_of(rows, band)
    if curve is None:
        raise UserMistake("\n".join(f"{KEY}: {path}: {each}" for each in problems))
    return curve


def _of_run(name: str, band: float) -> ExpectedCurve:
    try:
        run_dir = runs.here(name)
    except UserMistake as error:
        raise UserMistake(
            f'{KEY} = "{name}" is no file and no run: {error}; give a CSV file with the columns '
            f'tokens and loss, a run directory, or "{LAW}"'
        ) from error
    points = [*_points(run_dir / LOOKS, band)]
    if len(points) < 2:
        raise UserMistake(
            f"{KEY}: {run_dir / LOOKS} has {len(points)} held-out losses, and a curve needs 2; "
            "name a run that was evaluated, or set its monitor.evaluate_every_s lower"
        )
    return ExpectedCurve(tuple(points))


def _points(path: Path, band: float) -> Iterator[ExpectedPoint]:
    """Yield the evaluations of a run, each at the tokens of the first row that has it.

    Damaged lines are left out. A run that went back to a snapshot has its tokens twice; the first
    ones count.
    """
    newest, most = -1, 0.0
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    row: Any = json.loads(line)
                    t, loss = row["heldout"][-1] if row["heldout"] else (-1, math.nan)
                    t, loss, tokens = int(t), float(loss), float(row["tokens_trained"])
                except (ValueError, LookupError, TypeError):
                    continue
                if math.isfinite(loss) and t > newest and tokens > most:
                    newest, most = t, tokens
                    yield ExpectedPoint(tokens, *banded(loss, band))
    except OSError as error:
        raise UserMistake(f"{KEY}: {path} cannot be read: {error.strerror or error}") from error
