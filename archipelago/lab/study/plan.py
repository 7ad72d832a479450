"""STUDY.toml: a base configuration, arms and axes, and the cells that they make with all seeds."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from archipelago.lab.study.cells import Cell
from archipelago.lab.training.average import PREFIX
from archipelago.lab.training.virtual_file import enter, read_tables, refuse
from cluster.config.modes import preset_of
from cluster.config.override import override
from cluster.config.problem_text import problem_of
from cluster.config.schema import Config, RunConfig, Table
from cluster.config.toml import toml_value
from cluster.config.values import LARGEST_SEED, Count, Mode, Name, nearest
from coordinator.errors import UserMistake

Point = Mapping[str, object]
"""What a row of a study has set: configuration paths and their values."""
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Measure = (
    Literal["heldout_loss", "goodput", "wall_s", "up_bytes_per_token", "mean_participants"]
    | Annotated[str, Field(pattern=rf"^{PREFIX}[0-9.e-]+$")]
)
OURS = ("study", "axes", "arms")


class StudyTable(Table):
    """The table `[study]`.

    `seeds`: so many from 0 on, or which. `against`: the arm that the others are compared with, seed
    by seed, at its best point. `measure`: a figure of `summary.json`.
    """

    name: Name | None = None  # None: the file's
    dir: Annotated[str, Field(min_length=1)] = "studies"
    seeds: Count | Annotated[list[Seed], Field(min_length=1)] = 4
    against: str | None = None
    measure: Measure = "heldout_loss"


class ArmTable(Table):
    """One table `[[arms]]`: `set` and `axes` of this arm alone, beside those of the study."""

    name: Name
    set: dict[str, Any] = Field(default_factory=dict[str, Any])
    axes: dict[str, Any] = Field(default_factory=dict[str, Any])


class StudyFile(Table):
    """What of the file is not the base configuration."""

    study: StudyTable = StudyTable()
    axes: dict[str, Any] = Field(default_factory=dict[str, Any])
    arms: Annotated[tuple[ArmTable, ...], Field(strict=False)] = ()


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One point of one arm: a cell for each seed, in their order.

    `shared`: what of the point is on the axes of all arms.
    """

    arm: str
    point: Point
    shared: Point
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """The arm, and what is set in it."""
        told = ", ".join(f"{path} = {toml_value(value)}" for path, value in self.point.items())
        return f"{self.arm}: {told}" if told else self.arm


@dataclass(frozen=True, slots=True)
class Study:
    """A study as it was asked for; `folder`: where its cells and its pictures are."""

    name: str
    folder: Path
    seeds: tuple[int, ...]
    against: str | None
    measure: str
    rows: tuple[StudyRow, ...]

    @property
    def cells(self) -> dict[str, Cell]:
        """Each one once, by its hash: several rows may want the same."""
        return {cell.key: cell for row in self.rows for cell in row.cells}


def read(path: Path, overrides: Sequence[str] = ()) -> Study:
    """Read a file; `overrides` (`a.b=c`) change its base, `study.seeds=1` and `axes.a.b=[c]` too.

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
    """Make a study of the tables of a file; `name`: unless it has one.

    Errors: `UserMistake` with every problem.
    """
    base = copy.deepcopy(dict(tables))
    own_tables = {key: base.pop(key) for key in OURS if key in base}
    ours = [text for text in overrides if _is_ours(text)]
    overrides = [text for text in overrides if text not in ours]
    unclear = [str(problem) for text in ours for problem in override(own_tables, text)]
    file, problems = _file(own_tables)
    problems += unclear
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
    common, wrong = _axes(file.axes, "axes")
    problems += wrong
    folder = Path(study.dir) / (study.name or name)
    rows, impossible = list[StudyRow](), dict[str, list[str]]()
    for arm in arms:
        own, wrong = _axes(arm.axes, f"arms.{arm.name}.axes")
        given = _flat(arm.set)
        problems += wrong
        problems += [
            f"arms.{arm.name}: {each} is set twice, by the arm and by an axis"
            for each in given
            if each in own
        ]
        for row, wrong in _rows(base, arm.name, given, common, own, overrides, seeds):
            rows.append(row)
            for each in wrong:
                impossible.setdefault(each, []).append(row.label)
    problems += [f"{each} ({_where(at, len(rows))})" for each, at in impossible.items()]
    refuse(origin, problems)
    return Study(study.name or name, folder, seeds, study.against, study.measure, tuple(rows))


def _file(tables: Mapping[str, Any]) -> tuple[StudyFile, list[str]]:
    """What is sound of it, and what is wrong."""
    try:
        return StudyFile.model_validate(tables), []
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    problems = list[str]()
    for mistake in mistakes:
        where = ".".join(str(part) for part in mistake["loc"])
        if mistake["type"] == "extra_forbidden":
            table = StudyTable if mistake["loc"][0] == "study" else ArmTable
            known = nearest(str(mistake["loc"][-1]), [*table.model_fields])
            problems.append(f"{where}: is not known; {known}")
        else:
            problems.append(str(problem_of(mistake)))
    sound = copy.deepcopy(dict(tables))
    for mistake in mistakes:
        _take_out(sound, mistake["loc"])
    return StudyFile.model_validate(sound), problems


def _take_out(tables: dict[str, Any], location: Sequence[int | str]) -> None:
    """Remove the last key of a location that is there; an arm is removed whole."""
    node: Any = tables
    for part in location:
        inner = node.get(part) if isinstance(node, dict) else None
        if not isinstance(inner, dict):
            if isinstance(node, dict):
                node.pop(part, None)
            return
        node = inner


def _where(labels: Sequence[str], rows: int) -> str:
    """At which points something is wrong."""
    match len(labels):
        case count if count == rows and rows > 1:
            return f"at all {rows} points"
        case 1:
            return f"at {labels[0]}"
        case count:
            return f"at {labels[0]} and {count - 1} more"


def _flat(tables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """`{"sync.every": 8}` and `{sync: {every: 8}}` are the same."""
    found = dict[str, Any]()
    for key, value in tables.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def _axes(tables: Mapping[str, Any], where: str) -> tuple[dict[str, list[Any]], list[str]]:
    """Each path with its values, and what is wrong with them."""
    axes, problems = dict[str, list[Any]](), list[str]()
    for path, values in _flat(tables).items():
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


def _rows(
    base: Mapping[str, Any],
    arm: str,
    given: Point,
    common: Mapping[str, list[Any]],
    own: Mapping[str, list[Any]],
    overrides: Sequence[str],
    seeds: Sequence[int],
) -> Iterator[tuple[StudyRow, Iterable[str]]]:
    """All points of an arm, each as a row with what is wrong with it."""
    seen = set[tuple[str, ...]]()
    for values in product(*common.values(), *own.values()):
        point = dict(zip((*common, *own), values, strict=True))
        asked = {**point, **given}
        fixed = _fixed_by(str(asked.get("run.mode", _said(base, "run.mode"))))
        mine = {*given, *own}
        point = {p: v for p, v in point.items() if p in mine or not _is_fixed(p, fixed)}
        tables = copy.deepcopy(dict(base))
        if isinstance(sync := tables.get("sync"), dict):
            kept = {k: v for k, v in _flat(sync).items() if not _is_fixed(f"sync.{k}", fixed)}
            tables["sync"] = _nested(kept)
        more = [text for text in overrides if not _is_fixed(text.partition("=")[0].strip(), fixed)]
        settings = [f"{path}={toml_value(value)}" for path, value in {**point, **given}.items()]
        cells, problems = list[Cell](), list[str]()
        for seed in seeds:
            entry = enter(tables, origin=arm, overrides=[*more, *settings, f"run.seed={seed}"])
            problems += entry.problems
            cells.append(Cell.of(entry.config, entry.virtual))
        shared = {path: value for path, value in point.items() if path in common}
        row = StudyRow(arm, point, shared, tuple(cells))
        if (keys := tuple(cell.key for cell in cells)) not in seen:
            seen.add(keys)  # an axis that the mode has no use for makes the same again
            yield row, dict.fromkeys(problems)


def _said(base: Mapping[str, Any], path: str) -> object:
    table, _, key = path.partition(".")
    return base.get(table, {}).get(key) if isinstance(base.get(table, {}), Mapping) else None


def _fixed_by(mode: str) -> frozenset[str]:
    """What of `[sync]` a mode decides itself: of the study's base and axes it is left out there,
    since an arm has no part in them; what the arm sets itself is kept, and refused."""
    if mode not in [*Mode]:
        return frozenset()
    if Mode(mode).sums_gradients:
        return frozenset({"sync"})
    preset = preset_of(Config(run=RunConfig(mode=Mode(mode))))
    return frozenset() if preset is None else frozenset(f"sync.{key}" for key in preset.fixed)


def _is_fixed(path: str, fixed: frozenset[str]) -> bool:
    return path in fixed or path.partition(".")[0] in fixed


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tables = dict[str, Any]()
    for path, value in flat.items():
        *parents, last = path.split(".")
        node = tables
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return tables
