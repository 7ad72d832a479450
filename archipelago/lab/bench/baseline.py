"""The best data-parallel baseline: the learning rate and momentum that `bench parity` gives it.

Islands and data-parallel training have different best rates, so the baseline has a sweep of its
own, which is kept in baselines.toml.

    python -m archipelago.lab.bench.baseline PRESET STEPS RATES MOMENTA SEEDS

trains the settings that are missing, one process at a time, and records them. An example of
arguments is `byte-1m 300 8e-3,16e-3 0.9,0.95 0`. A row is a run of
`archipelago.lab.bench.data_parallel`.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from pydantic import TypeAdapter

from archipelago.lab.bench.stats import child, demo
from archipelago.lab.bench.tables import where
from cluster.config.schema import Config
from cluster.config.toml import toml_value
from cluster.config.training_tables import OptimizerConfig

TABLE = Path(__file__).with_name("baselines.toml")
"""The file of the sweeps."""
HEAD = (
    "# Data-parallel training by rate and momentum. Written by archipelago/lab/bench/baseline.py."
)


@dataclass(frozen=True, slots=True, order=True)
class RateAndMomentum:
    """The setting that is swept."""

    learning_rate: float
    momentum: float


@dataclass(frozen=True, slots=True)
class Trained:
    """A run with one setting."""

    learning_rate: float
    momentum: float
    seed: int
    heldout_loss: float
    """The held-out loss at the end of the run, in nats per token."""

    @property
    def setting(self) -> RateAndMomentum:
        """The setting of this run."""
        return RateAndMomentum(self.learning_rate, self.momentum)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All runs of one model for one number of steps."""

    preset: str
    steps: int
    """Steps of each run."""
    facts: Mapping[str, object]
    """Everything else that the loss depends on, from `facts_of`."""
    runs: Sequence[Trained]
    where: str
    """The date, the machine and the versions of the first run."""

    @property
    def best(self) -> RateAndMomentum:
        """The setting with the lowest mean loss, among those tried with the most seeds."""
        losses: dict[RateAndMomentum, list[float]] = {}
        for run in self.runs:
            losses.setdefault(run.setting, []).append(run.heldout_loss)
        most_seeds = max(map(len, losses.values()))
        return min(
            (fmean(each), setting) for setting, each in losses.items() if len(each) == most_seeds
        )[1]

    @property
    def enclosed(self) -> bool:
        """Whether some seed tried the best setting between others, in rate and in momentum."""
        best = self.best
        for seed in {run.seed for run in self.runs}:
            losses = {run.setting: run.heldout_loss for run in self.runs if run.seed == seed}
            of_equal_momentum = [setting for setting in losses if setting.momentum == best.momentum]
            of_equal_rate = [
                setting for setting in losses if setting.learning_rate == best.learning_rate
            ]
            if all(_between(best, sorted(line)) for line in (of_equal_momentum, of_equal_rate)):
                return True
        return False


_TABLE = TypeAdapter(dict[str, list[Sweep]])


def _between(best: RateAndMomentum, line: Sequence[RateAndMomentum]) -> bool:
    """Return whether `best` is in the sorted line, and not at one of its ends."""
    return best in line and 0 < line.index(best) < len(line) - 1


def read(path: Path = TABLE) -> list[Sweep]:
    """Return the recorded sweeps."""
    return _TABLE.validate_python(tomllib.loads(path.read_text())).get("sweeps", [])


def written(sweeps: Iterable[Sweep]) -> str:
    """Return the text of the file with these sweeps, their runs in order."""
    lines = [HEAD]
    for sweep in sweeps:
        runs = sorted(sweep.runs, key=lambda run: (run.seed, run.momentum, run.learning_rate))
        lines += [
            "",
            "[[sweeps]]",
            f"preset = {toml_value(sweep.preset)}",
            f"steps = {sweep.steps}",
            f"where = {toml_value(sweep.where)}",
            f"facts = {toml_value(sweep.facts)}",
            "runs = [",
            *(f"    {toml_value(asdict(run))}," for run in runs),
            "]",
        ]
    return "\n".join(lines) + "\n"


LATER_KEYS = ("options", "schedule", "decay_fraction", "loss_scale", "loss_scale_steps")
"""Keys of `[optimizer]` that the first sweeps did not have; at their defaults they are no facts."""


def facts_of(config: Config) -> dict[str, object]:
    """Return everything else that the loss of data-parallel training depends on.

    Besides preset, steps, rate, momentum and seed these are the batch, which is the sum of the
    islands' batches, the data, and the rest of the optimizer.
    """
    optimizer = config.optimizer.model_dump(exclude={"learning_rate", "momentum"})
    data = config.data.model_dump(include={"source", "column", "heldout_percent", "window"})
    windows = sum(group.count * group.batch_size for group in config.islands)
    facts = {"windows": windows, **data, **optimizer}
    usual = {name: OptimizerConfig.model_fields[name].get_default() for name in LATER_KEYS}
    return {
        name: value
        for name, value in facts.items()
        if value is not None and (name not in usual or value != usual[name])
    }


def found(config: Config, sweeps: Sequence[Sweep]) -> Sweep | None:
    """Return the sweep of exactly this model, batch, data and number of steps, if there is one."""
    task, steps = config.task, config.run.steps
    for sweep in sweeps:
        is_same = (sweep.preset, sweep.steps, sweep.facts) == (task.preset, steps, facts_of(config))
        if is_same and not task.options and task.compute_dtype is None:
            return sweep
    return None


def at(config: Config, setting: RateAndMomentum) -> Config:
    """Return the configuration with another rate and momentum."""
    optimizer = config.optimizer.model_copy(update=asdict(setting))
    return config.model_copy(update={"optimizer": optimizer})


def opponent(config: Config, sweeps: Sequence[Sweep]) -> tuple[Config, bool]:
    """Return the configuration of the data-parallel baseline, and whether it is tuned.

    It is tuned if its sweep encloses the best setting. Without a sweep it keeps the rate and
    momentum of the islands.
    """
    if (sweep := found(config, sweeps)) is None:
        return config, False
    return at(config, sweep.best), sweep.enclosed


def setting_of(config: Config) -> RateAndMomentum:
    """Return the rate and momentum of a configuration."""
    return RateAndMomentum(config.optimizer.learning_rate, config.optimizer.momentum)


def trained(config: Config, steps: int) -> float:
    """Train data-parallel for `steps` steps in a process of its own; return the held-out loss."""
    with TemporaryDirectory(prefix="archipelago-baseline-") as folder:
        path = Path(folder) / "baseline.toml"
        path.write_text(config.toml())
        return child(["-m", "archipelago.lab.bench.data_parallel", str(path), str(steps)])[
            "heldout_loss"
        ]


def main(
    preset: str, steps: int, settings: Sequence[RateAndMomentum], seeds: Sequence[int]
) -> None:
    """Train the missing settings, and record each run when it is over."""
    for seed in seeds:
        config = demo(preset, steps=steps, seed=seed, overrides=[])
        for setting in settings:
            sweeps = read()
            sweep = found(config, sweeps) or Sweep(preset, steps, facts_of(config), [], where())
            others = [each for each in sweeps if each != sweep]
            if any((run.setting, run.seed) == (setting, seed) for run in sweep.runs):
                continue
            loss = trained(at(config, setting), steps)
            print(f"seed {seed}, {setting}: {loss:.4f}", flush=True)
            new = Trained(setting.learning_rate, setting.momentum, seed, loss)
            TABLE.write_text(written([*others, replace(sweep, runs=[*sweep.runs, new])]))


if __name__ == "__main__":
    rates, momenta, numbers = (argument.split(",") for argument in sys.argv[3:6])
    grid = [RateAndMomentum(float(rate), float(momentum)) for momentum in momenta for rate in rates]
    main(sys.argv[1], int(sys.argv[2]), grid, [int(number) for number in numbers])
