"""A file with a configuration and a table `[virtual]`, checked; every problem at once."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from archipelago.lab.training.supported import refused
from archipelago.lab.training.timing import Virtual
from cluster.config.load import Draft, draft
from cluster.config.override import override
from cluster.config.problem_text import problem_of
from cluster.config.schema import Config
from cluster.config.toml import table_block
from cluster.config.values import nearest
from coordinator.errors import UserMistake

TABLE = "virtual"


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in virtual time as it was asked for; `problems`: why it cannot be."""

    draft: Draft
    virtual: Virtual
    problems: tuple[str, ...]

    @property
    def config(self) -> Config:
        return self.draft.config


def enter(tables: Mapping[str, Any], *, origin: str, overrides: Sequence[str] = ()) -> Entry:
    """Check the tables of a file, with `a.b=c` applied; `virtual.jitter=0.1` is one too."""
    tables = copy.deepcopy(dict(tables))
    ours = [text for text in overrides if text.strip().startswith(f"{TABLE}.")]
    theirs = [text for text in overrides if text not in ours]
    timing = {TABLE: tables.pop(TABLE, {})}
    problems = [str(problem) for text in ours for problem in override(timing, text)]
    virtual, more = _virtual(timing[TABLE])
    made = draft(tables, origin=origin, overrides=theirs)
    problems += [*more, *map(str, made.problems)]
    if not problems:
        problems = refused(made.config)
    return Entry(made, virtual, tuple(problems))


def read_tables(path: Path) -> dict[str, Any]:
    """Errors: `UserMistake` if there is no such file, or it is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserMistake(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserMistake(f"{path} is not text in UTF-8: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserMistake(f"{path} is not valid TOML: {error}") from error


def load(path: Path, overrides: Sequence[str] = ()) -> tuple[Config, Virtual]:
    """Errors: `UserMistake` with every problem."""
    entry = enter(read_tables(path), origin=str(path), overrides=overrides)
    refuse(str(path), entry.problems)
    return entry.config, entry.virtual


def refuse(origin: str, problems: Sequence[str]) -> None:
    """Errors: `UserMistake`, if there are any."""
    if lines := list(dict.fromkeys(f"  {line}" for each in problems for line in each.splitlines())):
        count = f"{len(lines)} problem{'s' if len(lines) > 1 else ''}"
        raise UserMistake("\n".join([f"{origin}: {count}", *lines]))


def written(config: Config, virtual: Virtual) -> str:
    """Both, as a file that `load` reads back."""
    return config.toml() + "\n" + table_block(f"[{TABLE}]", virtual.model_dump(mode="json"))


def _virtual(table: object) -> tuple[Virtual, list[str]]:
    """The table as far as it is sound, and what is wrong with the rest."""
    if not isinstance(table, dict):
        return Virtual(), [f"{TABLE}: must be a table"]
    try:
        return Virtual.model_validate(table), []
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    problems = list[str]()
    for mistake in mistakes:
        name = ".".join(str(part) for part in mistake["loc"])
        if mistake["type"] == "extra_forbidden":
            problems.append(
                f"{TABLE}.{name}: is not known; {nearest(name, [*Virtual.model_fields])}"
            )
        else:
            problems.append(f"{TABLE}.{problem_of(mistake)}")
    return Virtual(), problems
