"""A file with a configuration and a table `[virtual]`, checked for all problems at once."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from cluster.shard.own_sources import with_sources
from coordinator.errors import UserMistake

TABLE = "virtual"


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in virtual time as the user described it."""

    draft: Draft
    virtual: Virtual
    problems: tuple[str, ...]
    """The reasons why it cannot be trained."""

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.draft.config


def enter(tables: Mapping[str, Any], *, origin: str, overrides: Sequence[str] = ()) -> Entry:
    """Check the tables of a file after the overrides `a.b=c`, such as `virtual.jitter=0.1`."""
    tables = copy.deepcopy(dict(tables))
    own_overrides = [text for text in overrides if text.strip().startswith(f"{TABLE}.")]
    run_overrides = [text for text in overrides if text not in own_overrides]
    timing = {TABLE: tables.pop(TABLE, {})}
    problems = [str(problem) for text in own_overrides for problem in override(timing, text)]
    virtual, virtual_problems = _virtual(timing[TABLE])
    made = draft(tables, origin=origin, overrides=run_overrides)
    problems += [*virtual_problems, *map(str, made.problems)]
    if not problems:
        made = replace(made, config=with_sources(made.config))
        problems = refused(made.config)
    return Entry(made, virtual, tuple(problems))


def read_tables(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Errors: `UserMistake` if there is no such file, or if it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserMistake(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserMistake(f"{path} is not text in UTF-8: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserMistake(f"{path} is not valid TOML: {error}") from error


def load(path: Path, overrides: Sequence[str] = ()) -> tuple[Config, Virtual]:
    """Read a file and apply the overrides.

    Errors: `UserMistake` with every problem.
    """
    entry = enter(read_tables(path), origin=str(path), overrides=overrides)
    refuse(str(path), entry.problems)
    return entry.config, entry.virtual


def refuse(origin: str, problems: Sequence[str]) -> None:
    """Raise the problems together, if there are any.

    Errors: `UserMistake` with every problem.
    """
    if lines := list(dict.fromkeys(f"  {line}" for each in problems for line in each.splitlines())):
        count = f"{len(lines)} problem{'s' if len(lines) > 1 else ''}"
        raise UserMistake("\n".join([f"{origin}: {count}", *lines]))


def written(config: Config, virtual: Virtual) -> str:
    """Return a configuration and its table `[virtual]` as a file that `load` reads back."""
    return config.toml() + "\n" + table_block(f"[{TABLE}]", virtual.model_dump(mode="json"))


def _virtual(table: object) -> tuple[Virtual, list[str]]:
    """Return the table, or the defaults if it has mistakes, and the problems."""
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
