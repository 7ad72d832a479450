"""A cell of a study: one run in virtual time, in a file named by its configuration's hash."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archipelago.lab.training.evaluations import METRIC_PREFIX, METRICS, Evaluation
from archipelago.lab.training.timing import Virtual
from archipelago.lab.training.virtual_file import written
from cluster.config.schema import Config, DurabilityConfig, MonitorConfig
from cluster.config.values import Mode
from cluster.source import PACKAGES, target_sha256
from cluster.storage.files import json_bytes, json_text, write

KEY_DIGITS = 16
FORMAT = 1
"""The version of the format of a cell's file."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a study."""

    config: Config
    virtual: Virtual
    key: str
    """A hash that is equal for two cells that train the same, whatever their names."""

    @staticmethod
    def of(config: Config, virtual: Virtual) -> Cell:
        """Make the cell of a configuration.

        Its key does not depend on where a run is written or how it is watched. It also ignores keys
        that have their default, so that a new key of the configuration keeps finished cells valid.
        If you change a default, raise `FORMAT`.

        The source of the user's code is part of the key, ours is not (`CellResult.source`).
        """
        run = config.run.model_copy(update={"name": None, "dir": "runs"})
        plain = {"run": run, "monitor": MonitorConfig(), "durability": DurabilityConfig()}
        config = config.model_copy(update=plain)
        trained = config.model_dump(mode="json", exclude_defaults=True)
        timing = virtual.model_dump(mode="json", exclude_defaults=True)
        text = " ".join((str(FORMAT), json_text(trained), json_text(timing), *_sources(config)))
        return Cell(config, virtual, hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS])

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.config.run.seed

    @property
    def mode(self) -> Mode:
        """The mode of the run."""
        return self.config.run.mode


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of a cell."""

    figures: Mapping[str, Any]
    """The keys of `summary.json` with their values."""
    curve: Sequence[Evaluation]
    """The evaluations during training."""
    failed: str
    """The reason if the cell failed; empty if it did not."""
    took_s: float
    """The time it took to train, in seconds."""
    source: str
    """The hash of the code that made it."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics that the task returned beside its held-out loss, by name."""
        return self.figures.get(METRICS) or {}

    def figure(self, name: str) -> float:
        """Return a figure, or a metric as `heldout_metrics.NAME`; NaN if there is none."""
        if name.startswith(METRIC_PREFIX):
            value = self.metrics.get(name.removeprefix(METRIC_PREFIX))
        else:
            value = self.figures.get(name)
        return math.nan if value is None else float(value)


class Broken(Exception):
    """An error of a cell's file that holds no result; the argument is the reason."""


@dataclass(frozen=True, slots=True)
class CellFiles:
    """The cells in a folder: the configuration and the result of each."""

    folder: Path

    def config_path(self, key: str) -> Path:
        """Return the path of a cell's configuration."""
        return self.folder / f"{key}.toml"

    def result_path(self, key: str) -> Path:
        """Return the path of a cell's result."""
        return self.folder / f"{key}.json"

    def command(self, key: str) -> str:
        """Return the command that trains this cell and prints its result."""
        return f"python -m archipelago.lab.training {self.config_path(key)}"

    def ask(self, cell: Cell) -> Path:
        """Write the configuration of a cell, and return its path."""
        path = self.config_path(cell.key)
        write(path, written(cell.config, cell.virtual).encode())
        return path

    def keep(self, key: str, made: CellResult) -> None:
        """Write the result of a cell, atomically."""
        fields = {
            "format": FORMAT,
            "key": key,
            "command": self.command(key),
            "source": made.source,
            "took_s": made.took_s,
            "failed": made.failed,
            "figures": made.figures,
            "curve": [list(evaluation) for evaluation in made.curve],
        }
        write(self.result_path(key), json_bytes(fields))

    def find(self, key: str) -> CellResult | None:
        """Return the result of a cell; None if it was not made yet.

        Errors: `Broken` if there is a file that holds no result of this cell.
        """
        path = self.result_path(key)
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["format"] != FORMAT or fields["key"] != key:
                raise Broken(f"{path} is of cell {fields['key']} in format {fields['format']}")
            curve = [
                Evaluation(t, s, n, math.nan if x is None else x) for t, s, n, x in fields["curve"]
            ]
            figures, failed = dict(fields["figures"]), str(fields["failed"])
            return CellResult(
                figures, curve, failed, float(fields["took_s"]), str(fields["source"])
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            kind = type(error).__name__
            raise Broken(f"{path} is no result of a cell ({kind}: {error}): delete it") from error


def _sources(config: Config) -> list[str]:
    """Return the digests of the user's code that the configuration does not state itself.

    It states those of an own merge rule and of own codecs (`own_sources`).
    """
    stated = {"sync.merge", *config.codecs}
    code = {**config.learner_code, **config.shard_code}
    targets = [target for key, target in sorted(code.items()) if key not in stated]
    own = [target for target in targets if target.partition(".")[0] not in PACKAGES]
    return [sha256 for target in own if (sha256 := target_sha256(target))]
