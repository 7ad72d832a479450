"""`bench parity --lock-step`: every mode against data-parallel, seed by seed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cluster.bench.parity_modes import compared

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_every_mode_is_compared_at_equal_tokens(tmp_path: Path) -> None:
    for number in range(8):
        lines = (f"{number} times {i} is {number * i}, and so on\n" for i in range(200))
        (tmp_path / f"{number}.txt").write_text("".join(lines))
    small = {"width": 16, "layers": 1, "heads": 1, "hidden": 32}
    said = list[str]()
    told = compared(
        preset="byte-tiny",
        steps=16,
        seeds=2,
        overrides=[
            *(f"task.options.{name}={value}" for name, value in small.items()),
            f"data.source={tmp_path}", "data.window=16", "data.lease_windows=32",
            "data.heldout_percent=20.0", "sync.every=4", "sync.fragments=2",
        ],
        say=said.append,
    )  # fmt: skip
    assert (told["samples"], told["baseline_tuned"]) == (2, False)
    theirs = number_of(told, "data_parallel_loss")
    for arm in ("decoupled", "diloco", "streaming"):
        name = "gap_percent" if arm == "decoupled" else f"{arm}_gap_percent"
        gap, low, high = (number_of(told, f"{name}{end}") for end in ("", "_low", "_high"))
        assert low < gap < high
        loss = number_of(told, f"{arm}_loss")
        assert gap == pytest.approx(100 * (loss / theirs - 1), abs=0.5)
    assert sum("over data-parallel" in line for line in said) == 6


def number_of(told: dict[str, object], name: str) -> float:
    value = told[name]
    assert isinstance(value, float)
    assert math.isfinite(value)
    return value
