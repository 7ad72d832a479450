"""`archipelago bench parity`: do islands learn as well as data-parallel training at its best?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from archipelago.lab.bench import baseline
from archipelago.lab.bench.parity_modes import ISLANDS, compared
from archipelago.lab.bench.stats import child, demo, median, told
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
    """Held-out loss of islands and of data-parallel training, at equal tokens.

    For each seed in turn: the islands for `steps` syncer steps, then data-parallel in one process
    for as many steps of the islands' summed batch as they trained tokens. Same model, corpus,
    schedule and held-out text; rate and momentum are each side's own: the configuration's for the
    islands, those of `bench.baseline` for data-parallel. `baseline_tuned` is false where no such
    sweep was made: then it has the islands' rate and momentum, and the gap is too small.
    `every_mode`: DiLoCo and Streaming DiLoCo over Ray as well. `lock_step`: in virtual time, and
    always every mode (`archipelago.lab.bench.parity_modes`).
    """
    if lock_step:
        return compared(preset=preset, steps=steps, seeds=seeds, overrides=overrides, say=say)
    modes = ISLANDS if every_mode else ISLANDS[:1]
    found: dict[str, list[float]] = {}
    result: dict[str, object] = {"steps": steps, "samples": seeds}
    for seed in range(seeds):
        rivals: dict[int, float] = {}  # of data-parallel, after so many steps
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
            which = [*overrides, f"run.mode={mode.value}"]
            config = demo(preset, steps=steps, seed=seed, overrides=which)
            ours = _run(config)
            batch = sum(group.count * group.batch_size for group in config.islands)
            equal = round(ours["tokens_trained"] / (batch * config.data.window))
            if equal not in rivals:
                rivals[equal] = baseline.trained(best, equal)
            loss, rival = ours["heldout_loss"], rivals[equal]
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
        result |= told(name, middle)
        result["coverage"] = middle.coverage
    return result


def _run(config: Config) -> dict[str, float]:
    """A run of its own, over Ray; its summary."""
    with TemporaryDirectory(prefix="archipelago-parity-") as folder:
        path = Path(folder) / "parity.toml"
        path.write_text(config.toml())
        return child(
            ["-m", "archipelago", "run", str(path), "--json", "--run-dir", f"{folder}/run"]
        )
