"""A cell of a study: one run in virtual time, as a file that is found again by what it is of."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archipelago.lab.training.evaluations import Evaluation
from archipelago.lab.training.timing import Virtual
from archipelago.lab.training.virtual_file import written
from cluster.config.schema import Config, DurabilityConfig, MonitorConfig
from cluster.config.values import Mode
from cluster.storage.files import json_bytes, json_text, write

KEY_DIGITS = 16
FORMAT = 1
"""Of a cell's file."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. `key`: equal for two that train the same, whatever they are called."""

    config: Config
    virtual: Virtual
    key: str

    @staticmethod
    def of(config: Config, virtual: Virtual) -> Cell:
        """Make the cell of a configuration. Its key does not depend on where a run is written and
        how it is watched, nor on keys that have their default, so that a new key of the
        configuration keeps finished cells. Whoever changes a default raises `FORMAT`."""
        run = config.run.model_copy(update={"name": None, "dir": "runs"})
        plain = {"run": run, "monitor": MonitorConfig(), "durability": DurabilityConfig()}
        config = config.model_copy(update=plain)
        trained = config.model_dump(mode="json", exclude_defaults=True)
        timing = virtual.model_dump(mode="json", exclude_defaults=True)
        text = f"{FORMAT} {json_text(trained)} {json_text(timing)}"
        return Cell(config, virtual, hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS])

    @property
    def seed(self) -> int:
        return self.config.run.seed

    @property
    def mode(self) -> Mode:
        return self.config.run.mode


@dataclass(frozen=True, slots=True)
class CellResult:
    """What a cell has come to. `failed`: why it came to nothing, empty if it did not; `source`: of
    the code that made it."""

    figures: Mapping[str, Any]
    curve: Sequence[Evaluation]
    failed: str
    took_s: float
    source: str

    def figure(self, name: str) -> float:
        """NaN where there is none."""
        value = self.figures.get(name)
        return math.nan if value is None else float(value)


class Broken(Exception):
    """A cell's file is none; the argument says why."""


@dataclass(frozen=True, slots=True)
class CellFiles:
    """The cells in a folder: for each one its configuration, and what it has come to."""

    folder: Path

    def config_path(self, key: str) -> Path:
        return self.folder / f"{key}.toml"

    def result_path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def command(self, key: str) -> str:
        """What makes this cell, and prints it."""
        return f"python -m archipelago.lab.training {self.config_path(key)}"

    def ask(self, cell: Cell) -> Path:
        """Write down what is to be trained."""
        path = self.config_path(cell.key)
        write(path, written(cell.config, cell.virtual).encode())
        return path

    def keep(self, key: str, made: CellResult) -> None:
        """Write down what it has come to, as a whole."""
        told = {
            "format": FORMAT,
            "key": key,
            "command": self.command(key),
            "source": made.source,
            "took_s": made.took_s,
            "failed": made.failed,
            "figures": made.figures,
            "curve": [list(look) for look in made.curve],
        }
        write(self.result_path(key), json_bytes(told))

    def find(self, key: str) -> CellResult | None:
        """What it has come to; None if it was not made yet.

        Errors: `Broken` if there is a file that does not say it.
        """
        path = self.result_path(key)
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            if told["format"] != FORMAT or told["key"] != key:
                raise Broken(f"{path} is of cell {told['key']} in format {told['format']}")
            curve = [
                Evaluation(t, s, n, math.nan if x is None else x) for t, s, n, x in told["curve"]
            ]
            figures, failed = dict(told["figures"]), str(told["failed"])
            return CellResult(figures, curve, failed, float(told["took_s"]), str(told["source"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            kind = type(error).__name__
            raise Broken(f"{path} is no result of a cell ({kind}: {error}): delete it") from error
