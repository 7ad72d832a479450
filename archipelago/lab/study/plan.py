"""STUDY.toml: a base configuration, arms and axes, and the cells that they make with all seeds."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archipelago.lab.study.cells import Cell
from archipelago.lab.study.grid import StudyRow, axes_of, flat, rows_of
from archipelago.lab.study.measures import Better, is_higher_better, measure_problems
from archipelago.lab.study.study_file import OURS, ArmTable, checked
from archipelago.lab.training.average import PREFIX
from archipelago.lab.training.question_sets import ACCURACY, ACCURACY_NORM
from archipelago.lab.training.timing import Virtual
from archipelago.lab.training.virtual_file import read_tables, refuse
from cluster.config.override import override
from cluster.config.values import nearest
from coordinator.errors import UserMistake
from islands.data.local_paths import address_problem


@dataclass(frozen=True, slots=True)
class Study:
    """A study as the user described it."""

    name: str
    folder: Path
    """The folder of its cells and pictures."""
    seeds: tuple[int, ...]
    """The seed of each cell of a row."""
    against: str | None
    """The arm that the others are compared with; None if there is none."""
    measure: str
    """The figure to compare."""
    better: Better | None
    """Which value of a metric of the task is better; None for other measures."""
    rows: tuple[StudyRow, ...]

    @property
    def higher(self) -> bool:
        """Whether a higher value of the measure is the better one."""
        return is_higher_better(self.measure, self.better)

    @property
    def cells(self) -> dict[str, Cell]:
        """Each cell once, by its hash: several rows may share one."""
        return {cell.key: cell for row in self.rows for cell in row.cells}


def read(path: Path, overrides: Sequence[str] = ()) -> Study:
    """Read a study file; `overrides` (`a.b=c`) change its base, `study.*` and `axes.*`.

    Examples of overrides are `study.seeds=1` and `axes.a.b=[c]`.

    Errors: `UserMistake` with every problem.
    """
    tables = read_tables(path)
    if not tables.keys() & {*OURS} and not any(map(_is_ours, overrides)):
        raise UserMistake(
            f"{path} has none of the tables {', '.join(f'[{name}]' for name in OURS)}: it is the "
            f"configuration of one run; to train it use `archipelago run {path}`, for a study see "
            "examples/studies/"
        )
    return planned(tables, origin=str(path), name=path.stem, overrides=overrides)


def _is_ours(override: str) -> bool:
    return override.strip().startswith(("study.", "axes."))


def planned(
    tables: Mapping[str, Any], *, origin: str, name: str, overrides: Sequence[str] = ()
) -> Study:
    """Make a study of the tables of a file; `name` is its name unless the file has one.

    Errors: `UserMistake` with every problem.
    """
    base = copy.deepcopy(dict(tables))
    own_tables = {key: base.pop(key) for key in OURS if key in base}
    own_overrides = [text for text in overrides if _is_ours(text)]
    overrides = [text for text in overrides if text not in own_overrides]
    override_problems = [
        str(problem) for text in own_overrides for problem in override(own_tables, text)
    ]
    file, problems = checked(own_tables)
    problems += override_problems
    study = file.study
    arms = file.arms or (ArmTable(name=study.name or name),)
    names = [arm.name for arm in arms]
    problems += [
        f'arms: "{each}" is the name of {names.count(each)}; give each its own'
        for each in dict.fromkeys(names)
        if names.count(each) > 1
    ]
    if study.against is not None and study.against not in names:
        problems.append(
            f'study.against: "{study.against}" is no arm; {nearest(study.against, names)}'
        )
    if isinstance(study.seeds, int):
        seeds = tuple(range(study.seeds))
    else:
        seeds = tuple(dict.fromkeys(study.seeds))
        if len(seeds) < len(study.seeds):
            problems.append(f"study.seeds: {study.seeds} names one of them twice")
    common, new_problems = axes_of(file.axes, "axes")
    problems += new_problems
    if wrong := address_problem(study.dir):
        problems.append(f"study.dir: {wrong}")
    folder = Path(study.dir) / (study.name or name)
    rows, impossible = list[StudyRow](), dict[str, list[str]]()
    for arm in arms:
        arm_axes, new_problems = axes_of(arm.axes, f"arms.{arm.name}.axes")
        given = flat(arm.set)
        problems += new_problems
        problems += [
            f"arms.{arm.name}: {each} is set twice, by the arm and by an axis"
            for each in given
            if each in arm_axes
        ]
        for row, new_problems in rows_of(base, arm.name, given, common, arm_axes, overrides, seeds):
            rows.append(row)
            for each in new_problems:
                impossible.setdefault(each, []).append(row.label)
    if rows:
        figures = {name for row in rows for cell in row.cells for name in _figures(cell.virtual)}
        told = {problem.partition(":")[0] for problem in problems}
        problems += [
            problem
            for problem in measure_problems(study.measure, study.better, figures)
            if problem.partition(":")[0] not in told
        ]
    problems += [f"{each} ({_where(labels, len(rows))})" for each, labels in impossible.items()]
    refuse(origin, problems)
    return Study(
        study.name or name,
        folder,
        seeds,
        study.against,
        study.measure,
        study.better,
        tuple(rows),
    )


def _figures(virtual: Virtual) -> list[str]:
    """Return the names of the figures that the table `[virtual]` adds to a cell."""
    sets = [Path(path).stem for path in virtual.tasks]
    return [
        *(f"{PREFIX}{share:g}" for share in virtual.average_shares),
        *(f"{start}{name}" for start in (ACCURACY, ACCURACY_NORM) for name in sets),
    ]


def _where(labels: Sequence[str], rows: int) -> str:
    """Return at which points a problem occurs, in words."""
    match len(labels):
        case count if count == rows and rows > 1:
            return f"at all {rows} points"
        case 1:
            return f"at {labels[0]}"
        case count:
            return f"at {labels[0]} and {count - 1} more"
