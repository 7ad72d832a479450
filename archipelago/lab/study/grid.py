"""The grid of a study: the points that axes make in each arm, with a cell for each seed."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from archipelago.lab.study.cells import Cell
from archipelago.lab.training.virtual_file import enter
from cluster.config.modes import preset_of
from cluster.config.schema import Config, RunConfig
from cluster.config.toml import toml_value
from cluster.config.values import Mode

Point = Mapping[str, object]
"""The settings of a row of a study: configuration paths and their values."""


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One point of one arm, with a cell for each seed, in their order."""

    arm: str
    point: Point
    shared: Point
    """The settings of the point that come from the axes of all arms."""
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """The arm and its settings."""
        settings = ", ".join(f"{path} = {toml_value(value)}" for path, value in self.point.items())
        return f"{self.arm}: {settings}" if settings else self.arm


def flat(tables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested tables by dotted path: `{sync: {every: 8}}` gives `{"sync.every": 8}`."""
    found = dict[str, Any]()
    for key, value in tables.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def axes_of(tables: Mapping[str, Any], where: str) -> tuple[dict[str, list[Any]], list[str]]:
    """Return each path with its values, and the problems of the others."""
    axes, problems = dict[str, list[Any]](), list[str]()
    for path, values in flat(tables).items():
        if not isinstance(values, list):
            problems.append(f"{where}.{path}: must be a list of values, given {toml_value(values)}")
        elif not values:
            problems.append(
                f"{where}.{path}: has no values, so the grid is empty; give one or more"
            )
        elif len({toml_value(value) for value in values}) < len(values):
            problems.append(f"{where}.{path}: {toml_value(values)} has a value twice")
        elif path == "run.seed":
            problems.append(f"{where}.run.seed: seeds are no axis; they are study.seeds")
        else:
            axes[path] = values
    return axes, problems


def rows_of(
    base: Mapping[str, Any],
    arm: str,
    given: Point,
    common: Mapping[str, list[Any]],
    own: Mapping[str, list[Any]],
    overrides: Sequence[str],
    seeds: Sequence[int],
) -> Iterator[tuple[StudyRow, Iterable[str]]]:
    """Yield each point of an arm as a row, with its problems."""
    seen = set[tuple[str, ...]]()
    for values in product(*common.values(), *own.values()):
        point = dict(zip((*common, *own), values, strict=True))
        options = {**point, **given}
        fixed = _fixed_by(str(options.get("run.mode", _base_mode(base, overrides))))
        own_paths = {*given, *own}
        point = {p: v for p, v in point.items() if p in own_paths or not _is_fixed(p, fixed)}
        tables = copy.deepcopy(dict(base))
        if isinstance(sync := tables.get("sync"), dict):
            kept = {k: v for k, v in flat(sync).items() if not _is_fixed(f"sync.{k}", fixed)}
            tables["sync"] = _nested(kept)
        kept_overrides = [
            text for text in overrides if not _is_fixed(text.partition("=")[0].strip(), fixed)
        ]
        settings = [f"{path}={toml_value(value)}" for path, value in {**point, **given}.items()]
        cells, problems = list[Cell](), list[str]()
        for seed in seeds:
            entry = enter(
                tables, origin=arm, overrides=[*kept_overrides, *settings, f"run.seed={seed}"]
            )
            problems += entry.problems
            cells.append(Cell.of(entry.config, entry.virtual))
        shared = {path: value for path, value in point.items() if path in common}
        row = StudyRow(arm, point, shared, tuple(cells))
        if (keys := tuple(cell.key for cell in cells)) not in seen:
            seen.add(keys)  # an axis that the mode ignores repeats the same row
            yield row, dict.fromkeys(problems)


def _base_mode(base: Mapping[str, Any], overrides: Sequence[str]) -> object:
    """Return `run.mode` of the base after the overrides; None if nothing sets it."""
    table = base.get("run", {})
    mode = table.get("mode") if isinstance(table, Mapping) else None
    for path, _, value in (text.partition("=") for text in overrides):
        if path.strip() == "run.mode":
            mode = value.strip().strip("\"'")
    return mode


def _fixed_by(mode: str) -> frozenset[str]:
    """Return the paths of `[sync]` that a mode decides itself.

    They are ignored in the study's base and axes, which hold for all arms. A setting of the arm
    itself is kept, and refused.
    """
    if mode not in [*Mode]:
        return frozenset()
    if Mode(mode).sums_gradients:
        return frozenset({"sync"})
    preset = preset_of(Config(run=RunConfig(mode=Mode(mode))))
    return frozenset() if preset is None else frozenset(f"sync.{key}" for key in preset.fixed)


def _is_fixed(path: str, fixed: frozenset[str]) -> bool:
    return path in fixed or path.partition(".")[0] in fixed


def _nested(paths: Mapping[str, Any]) -> dict[str, Any]:
    tables = dict[str, Any]()
    for path, value in paths.items():
        *parents, last = path.split(".")
        node = tables
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return tables
