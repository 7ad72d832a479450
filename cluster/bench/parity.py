"""`archipelago bench parity`: do islands learn as well as data-parallel training at its best?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster.bench import baseline
from cluster.bench.stats import child, demo, median, told
from cluster.config.schema import Config


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
    schedule and held-out text; rate and momentum are each side's own: the configuration's for the
    islands, those of `cluster.bench.baseline` for data-parallel. `baseline_tuned` is false where no
    such sweep was made: then it has the islands' rate and momentum, and the gap is too small.
    `lock_step`: in virtual time, and the other modes beside it (`cluster.bench.parity_modes`).
    """
    if lock_step:
        from cluster.bench.parity_modes import compared

        return compared(preset=preset, steps=steps, seeds=seeds, overrides=overrides, say=say)
    decoupled, data_parallel, gaps = list[float](), list[float](), list[float]()
    result: dict[str, object] = {"steps": steps, "samples": seeds}
    for seed in range(seeds):
        config = demo(preset, steps=steps, seed=seed, overrides=overrides)
        with TemporaryDirectory(prefix="archipelago-parity-") as folder:
            path = Path(folder) / "parity.toml"
            path.write_text(config.toml())
            run = ["-m", "cluster", "run", str(path), "--json", "--run-dir", f"{folder}/run"]
            ours = child(run)
        batch = sum(group.count * group.batch_size for group in config.islands)
        equal = round(ours["tokens_trained"] / (batch * config.data.window))
        best, tuned = opponent(config, baseline.read())
        result |= {
            "baseline_tuned": tuned,
            "baseline_learning_rate": best.optimizer.learning_rate,
            "baseline_momentum": best.optimizer.momentum,
        }
        if not tuned:
            say("no sweep of data-parallel was made for this: it has the islands' own rate")
        decoupled.append(ours["heldout_loss"])
        data_parallel.append(baseline.trained(best, equal))
        gaps.append(100 * (decoupled[-1] / data_parallel[-1] - 1))
        say(
            f"seed {seed}: data-parallel {data_parallel[-1]:.4f} after {equal} steps, "
            f"decoupled {decoupled[-1]:.4f}, gap {gaps[-1]:+.2f} %"
        )
    for name, samples in (
        ("data_parallel_loss", data_parallel),
        ("decoupled_loss", decoupled),
        ("gap_percent", gaps),
    ):
        middle = median(samples)
        result |= told(name, middle)
        result["coverage"] = middle.coverage
    return result


def opponent(config: Config, sweeps: Sequence[baseline.Sweep]) -> tuple[Config, bool]:
    """What data-parallel is trained with beside this; and is that known to be its best?"""
    if (sweep := baseline.found(config, sweeps)) is None:
        return config, False
    return baseline.at(config, sweep.best), sweep.enclosed
