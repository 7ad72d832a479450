"""The tables of STUDY.toml beside its base configuration: `[study]`, `[axes]` and `[[arms]]`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from archipelago.lab.study.measures import Better
from cluster.config.problem_text import problem_of
from cluster.config.schema import Table
from cluster.config.values import LARGEST_SEED, Count, Name, nearest

Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
OURS = ("study", "axes", "arms")
"""The tables of a study file that are not its base configuration."""


class StudyTable(Table):
    """The table `[study]`."""

    name: Name | None = None
    """The study's name; None: the name of the file."""
    dir: Annotated[str, Field(min_length=1)] = "studies"
    seeds: Count | Annotated[list[Seed], Field(min_length=1)] = 4
    """The number of seeds, counted from 0, or a list of seeds."""
    against: str | None = None
    """The arm that the others are compared with, seed by seed, at its best point."""
    measure: str = "heldout_loss"
    """A figure of `summary.json`; `heldout_metrics.NAME` is a metric of the task."""
    better: Better | None = None
    """Which value of a metric of the task is better; None for other measures."""


class ArmTable(Table):
    """One table `[[arms]]`."""

    name: Name
    set: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Settings of this arm alone."""
    axes: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Axes of this arm alone, beside those of the study."""


class StudyFile(Table):
    """The tables of the file that are not the base configuration."""

    study: StudyTable = StudyTable()
    axes: dict[str, Any] = Field(default_factory=dict[str, Any])
    arms: Annotated[tuple[ArmTable, ...], Field(strict=False)] = ()


def checked(tables: Mapping[str, Any]) -> tuple[StudyFile, list[str]]:
    """Return the tables without their mistakes, and the problems."""
    try:
        return StudyFile.model_validate(tables), []
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    problems = list[str]()
    for mistake in mistakes:
        key = ".".join(str(part) for part in mistake["loc"])
        if mistake["type"] == "extra_forbidden":
            table = StudyTable if mistake["loc"][0] == "study" else ArmTable
            hint = nearest(str(mistake["loc"][-1]), [*table.model_fields])
            problems.append(f"{key}: is not known; {hint}")
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
