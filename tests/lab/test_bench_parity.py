"""`bench parity` compares every mode with data-parallel training, seed by seed."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest

from archipelago.lab.bench import baseline, parity
from archipelago.lab.bench.parity_modes import compared
from cluster.config.schema import Config
from cluster.config.values import Mode
from tests.given import sums


def test_over_ray_each_mode_is_compared_at_its_own_tokens_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Free-running islands train past the end; islands in lock-step do not."""
    losses = {Mode.DECOUPLED: 1.4, Mode.DILOCO: 1.5, Mode.STREAMING: 1.45}
    trained: list[int] = []

    def run(config: Config) -> dict[str, float]:
        batch = sum(g.count * g.batch_size for g in config.islands) * config.data.window
        steps = config.run.steps + (2 if config.run.mode is Mode.DECOUPLED else 0)
        loss = losses[config.run.mode] + 0.01 * config.run.seed
        return {"tokens_trained": steps * batch, "heldout_loss": loss}

    def rival(config: Config, steps: int) -> float:
        trained.append(steps)
        return 1.0 + 1 / steps

    monkeypatch.setattr(parity, "_run", run)
    monkeypatch.setattr(baseline, "trained", rival)
    asked = partial(
        parity.parity, preset="byte-tiny", steps=10, seeds=2, overrides=(), lock_step=False
    )
    told = asked(every_mode=True, say=lambda _: None)
    assert trained == [12, 10] * 2, "once for those that trained as much"
    assert number_of(told, "data_parallel_loss") == pytest.approx(1 + 1 / 12)
    assert number_of(told, "gap_percent") == pytest.approx(100 * (1.405 / (1 + 1 / 12) - 1))
    assert number_of(told, "diloco_gap_percent") == pytest.approx(100 * (1.505 / 1.1 - 1))
    assert number_of(told, "streaming_loss") == pytest.approx(1.455)
    alone = asked(every_mode=False, say=lambda _: None)
    assert not [name for name in alone if name.startswith(("diloco", "streaming"))]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_mode_is_compared_at_equal_tokens(tmp_path: Path) -> None:
    sums(tmp_path)
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
