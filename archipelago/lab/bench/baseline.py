"""Data-parallel at its own best: the learning rate and momentum that `bench parity` gives it.

Islands and data-parallel training are not at their best at the same rate, so the baseline has a
sweep of its own, kept in baselines.toml.

    python -m archipelago.lab.bench.baseline PRESET STEPS RATES MOMENTA SEEDS

trains what is not in there yet, one process at a time, and writes it down. An example of arguments
is `byte-1m 300 8e-3,16e-3 0.9,0.95 0`; a row is a run of `archipelago.lab.bench.data_parallel`.
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

TABLE = Path(__file__).with_name("baselines.toml")
HEAD = (
    "# Data-parallel training by rate and momentum. Written by archipelago/lab/bench/baseline.py."
)


@dataclass(frozen=True, slots=True, order=True)
class RateAndMomentum:
    """What is swept."""

    learning_rate: float
    momentum: float


@dataclass(frozen=True, slots=True)
class Trained:
    """A run with this setting, and the held-out loss at its end, nats per token."""

    learning_rate: float
    momentum: float
    seed: int
    heldout_loss: float

    @property
    def setting(self) -> RateAndMomentum:
        return RateAndMomentum(self.learning_rate, self.momentum)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All runs of one model, for so many steps. `facts`: all else that their loss depends on, as
    `facts_of` says it. `where`: when and on what the first one was made."""

    preset: str
    steps: int
    facts: Mapping[str, object]
    runs: Sequence[Trained]
    where: str

    @property
    def best(self) -> RateAndMomentum:
        """Of the settings that were tried with the most seeds, that of the lowest mean loss."""
        losses: dict[RateAndMomentum, list[float]] = {}
        for run in self.runs:
            losses.setdefault(run.setting, []).append(run.heldout_loss)
        most = max(map(len, losses.values()))
        return min((fmean(each), at) for at, each in losses.items() if len(each) == most)[1]

    @property
    def enclosed(self) -> bool:
        """Was the best one tried between others, in rate and in momentum, with one and the same
        seed?"""
        best = self.best
        for seed in {run.seed for run in self.runs}:
            tried = {run.setting: run.heldout_loss for run in self.runs if run.seed == seed}
            along = [at for at in tried if at.momentum == best.momentum]
            across = [at for at in tried if at.learning_rate == best.learning_rate]
            if all(_between(best, sorted(line)) for line in (along, across)):
                return True
        return False


_TABLE = TypeAdapter(dict[str, list[Sweep]])


def _between(best: RateAndMomentum, line: Sequence[RateAndMomentum]) -> bool:
    return best in line and 0 < line.index(best) < len(line) - 1


def read(path: Path = TABLE) -> list[Sweep]:
    """The sweeps that were made."""
    return _TABLE.validate_python(tomllib.loads(path.read_text())).get("sweeps", [])


def written(sweeps: Iterable[Sweep]) -> str:
    """Write the sweeps as the file has them, runs in order."""
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


def facts_of(config: Config) -> dict[str, object]:
    """What the loss of data-parallel training depends on, beside preset, steps, rate, momentum and
    seed: its batch, the sum of the islands', the data and the rest of the optimizer."""
    optimizer = config.optimizer.model_dump(exclude={"learning_rate", "momentum"})
    data = config.data.model_dump(include={"source", "column", "heldout_percent", "window"})
    windows = sum(group.count * group.batch_size for group in config.islands)
    facts = {"windows": windows, **data, **optimizer}
    return {name: value for name, value in facts.items() if value is not None}


def found(config: Config, sweeps: Sequence[Sweep]) -> Sweep | None:
    """The sweep of just this model, batch, data and number of steps; None if there is none."""
    task, steps = config.task, config.run.steps
    for sweep in sweeps:
        same = (sweep.preset, sweep.steps, sweep.facts) == (task.preset, steps, facts_of(config))
        if same and not task.options:
            return sweep
    return None


def at(config: Config, setting: RateAndMomentum) -> Config:
    """The same, with another rate and momentum."""
    optimizer = config.optimizer.model_copy(update=asdict(setting))
    return config.model_copy(update={"optimizer": optimizer})


def opponent(config: Config, sweeps: Sequence[Sweep]) -> tuple[Config, bool]:
    """Return what data-parallel is trained with beside this, and whether that is its best."""
    if (sweep := found(config, sweeps)) is None:
        return config, False
    return at(config, sweep.best), sweep.enclosed


def setting_of(config: Config) -> RateAndMomentum:
    return RateAndMomentum(config.optimizer.learning_rate, config.optimizer.momentum)


def trained(config: Config, steps: int) -> float:
    """Held-out loss of data-parallel training in a process of its own, after so many steps."""
    with TemporaryDirectory(prefix="archipelago-baseline-") as folder:
        path = Path(folder) / "baseline.toml"
        path.write_text(config.toml())
        return child(["-m", "archipelago.lab.bench.data_parallel", str(path), str(steps)])[
            "heldout_loss"
        ]


def main(
    preset: str, steps: int, settings: Sequence[RateAndMomentum], seeds: Sequence[int]
) -> None:
    """Train what is missing; each run is written down when it is over."""
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
