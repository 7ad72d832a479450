"""The benchmark `archipelago bench parity`: islands against data-parallel training at its best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from archipelago.lab.bench import baseline
from archipelago.lab.bench.parity_modes import ISLANDS, compared
from archipelago.lab.bench.stats import child, demo, interval_of, median
from cluster.config.schema import Config
from cluster.config.values import Mode


def parity(
    *,
    preset: str,
    steps: int,
    seeds: int,
    overrides: Sequence[str],
    lock_step: bool,
    every_mode: bool,
    say: Callable[[str], None],
) -> dict[str, object]:
    """Compare the held-out loss of islands with that of data-parallel training, at equal tokens.

    For each seed the islands train for `steps` syncer steps. Then data-parallel trains in one
    process, for as many steps of the islands' summed batch as they trained tokens. Model, corpus,
    schedule and held-out text are equal. Each side has its own rate and momentum: the islands those
    of the configuration, data-parallel those of `bench.baseline`. If no such sweep was made,
    `baseline_tuned` is false; data-parallel then has the islands' rate and momentum, and the gap is
    too small.

    `every_mode`: also run DiLoCo and Streaming DiLoCo over Ray. `lock_step`: run in virtual time,
    and always every mode (`archipelago.lab.bench.parity_modes`).
    """
    if lock_step:
        return compared(preset=preset, steps=steps, seeds=seeds, overrides=overrides, say=say)
    modes = ISLANDS if every_mode else ISLANDS[:1]
    found: dict[str, list[float]] = {}
    result: dict[str, object] = {"steps": steps, "samples": seeds}
    for seed in range(seeds):
        rivals: dict[int, float] = {}  # loss of data-parallel, by steps
        plain = demo(preset, steps=steps, seed=seed, overrides=overrides)
        best, tuned = baseline.opponent(plain, baseline.read())
        result |= {
            "baseline_tuned": tuned,
            "baseline_learning_rate": best.optimizer.learning_rate,
            "baseline_momentum": best.optimizer.momentum,
        }
        if not tuned:
            say("no sweep of data-parallel was made for this: it has the islands' own rate")
        for mode in modes:
            mode_overrides = [*overrides, f"run.mode={mode.value}"]
            config = demo(preset, steps=steps, seed=seed, overrides=mode_overrides)
            figures = _run(config)
            batch = sum(group.count * group.batch_size for group in config.islands)
            equal = round(figures["tokens_trained"] / (batch * config.data.window))
            if equal not in rivals:
                rivals[equal] = baseline.trained(best, equal)
            loss, rival = figures["heldout_loss"], rivals[equal]
            gap = 100 * (loss / rival - 1)
            if mode is Mode.DECOUPLED:
                found.setdefault("data_parallel_loss", []).append(rival)
            found.setdefault(f"{mode.value}_loss", []).append(loss)
            name = "gap_percent" if mode is Mode.DECOUPLED else f"{mode.value}_gap_percent"
            found.setdefault(name, []).append(gap)
            say(
                f"seed {seed}: data-parallel {rival:.4f} after {equal} steps, "
                f"{mode.value} {loss:.4f}, gap {gap:+.2f} %"
            )
    for name, samples in found.items():
        middle = median(samples)
        result |= interval_of(name, middle)
        result["coverage"] = middle.coverage
    return result


def _run(config: Config) -> dict[str, float]:
    """Run this configuration over Ray, and return its summary."""
    with TemporaryDirectory(prefix="archipelago-parity-") as folder:
        path = Path(folder) / "parity.toml"
        path.write_text(config.toml())
        return child(
            ["-m", "archipelago", "run", str(path), "--json", "--run-dir", f"{folder}/run"]
        )
