"""The loader of a run's configuration: TOML and `--set` overrides, validated once.

`load` returns a `Config`, or raises one `UserMistake` that lists every problem. All other code may
rely on these checks. A problem names its place in the notation of `--set`: `sync.every`,
`islands.0.count`.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cluster.config.checks import CHECKS
from cluster.config.modes import resolved, set_by_user
from cluster.config.other_files import other_command
from cluster.config.override import override
from cluster.config.problem_text import Location, Problem, problem_of
from cluster.config.schema import Config
from coordinator.errors import UserMistake


@dataclass(frozen=True, slots=True)
class Draft:
    """The valid part of a configuration, and the problems of the rest."""

    config: Config
    """The configuration, with defaults in place of the invalid fields."""
    origin: str
    """The file, or another name for the source; it begins the message."""
    problems: tuple[Problem, ...]
    """All problems."""
    broken: tuple[Location, ...]
    """The places of the invalid fields."""

    def sound(self, *reads: str) -> bool:
        """Return whether these fields are as the user wrote them; `*` stands for any index."""
        return not any(_touches(location, read) for location in self.broken for read in reads)

    def accepted(self, more: Sequence[str] = ()) -> Config:
        """Return the configuration if it has no problem and the caller found no more of them.

        Errors: `UserMistake` with every problem, those in `more` included.
        """
        if not self.problems:
            if more:
                raise UserMistake("\n".join(more))
            return self.config
        problems = [
            *map(str, self.problems),
            *(line for text in more for line in text.splitlines()),
        ]
        lines = dict.fromkeys(f"  {problem}" for problem in problems)
        count = f"{len(lines)} problem{'s' if len(lines) > 1 else ''}"
        raise UserMistake("\n".join([f"{self.origin}: {count}", *lines]))


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read the file, apply the overrides (`a.b=c`) and check.

    Errors: `UserMistake` with every problem.
    """
    return read(path, overrides).accepted()


def read(path: Path | str, overrides: Sequence[str] = ()) -> Draft:
    """Read the file and apply the overrides, for a caller that has more to check.

    Errors: the errors of `tables_of`. The draft holds other problems.
    """
    return draft(tables_of(path), origin=str(path), overrides=overrides)


def tables_of(path: Path | str) -> dict[str, Any]:
    """Read the tables of a file, unchecked.

    Errors: `UserMistake` if the file cannot be read, is no TOML, or belongs to another command.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise UserMistake(
            f"{path}: no such file; `archipelago init DIR` writes one to start from"
        ) from error
    except IsADirectoryError as error:
        raise UserMistake(_directory(path)) from error
    except OSError as error:
        raise UserMistake(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserMistake(f"{path} is not text in UTF-8: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserMistake(f"{path} is not valid TOML: {error}") from error
    if message := other_command(path, tables):
        raise UserMistake(message)
    return tables


def _directory(path: Path) -> str:
    """Return the message for a directory that was given in place of a configuration file."""
    if not (path / "config.toml").exists():
        return f"{path} is a directory: a configuration is a file, such as run.toml"
    return (
        f"{path} is the directory of a run: to resume that run use "
        f"`archipelago run {path / 'config.toml'} --resume --run-dir {path}`"
    )


def parse(
    tables: Mapping[str, Any], *, origin: str = "configuration", overrides: Sequence[str] = ()
) -> Config:
    """Check tables in the form of a TOML file, with the overrides (`a.b=c`) applied.

    Errors: `UserMistake` with every problem.
    """
    return draft(tables, origin=origin, overrides=overrides).accepted()


def draft(tables: Mapping[str, Any], *, origin: str, overrides: Sequence[str] = ()) -> Draft:
    """Return the valid part of the tables, and all problems.

    Invalid fields are reported and then removed, so that the checks between fields still cover all
    valid ones.
    """
    changed = copy.deepcopy(dict(tables))
    override_problems = [problem for text in overrides for problem in override(changed, text)]
    config, mistakes = _salvage(changed)
    broken = [mistake["loc"] for mistake in mistakes]
    problems = [*override_problems, *(problem_of(mistake) for mistake in mistakes)]
    cross_problems: list[Problem] = []
    if not any(_touches(location, read) for location in broken for read in ("run.mode", "islands")):
        config, cross_problems = resolved(config, set_by_user(config, tables, overrides))
    for check in CHECKS:
        if not any(_touches(location, read) for location in broken for read in check.reads):
            cross_problems += check.problems(config)
    broken += [tuple(problem.where.split(".")) for problem in cross_problems]
    return Draft(config, origin, (*problems, *cross_problems), tuple(broken))


def _salvage(tables: Mapping[str, Any]) -> tuple[Config, list[ErrorDetails]]:
    """Return the valid part of the tables, and pydantic's errors about the rest."""
    try:
        return Config.model_validate(tables), []
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    sound_tables = copy.deepcopy(dict(tables))
    _take_out(sound_tables, [mistake["loc"] for mistake in mistakes])
    return _salvage(sound_tables)[0], mistakes


def _touches(location: Location, read: str) -> bool:
    """Return whether one path is a prefix of the other; `*` in `read` stands for any index."""
    return all(
        part in ("*", str(found)) for found, part in zip(location, read.split("."), strict=False)
    )


def _take_out(tables: dict[str, Any], locations: Sequence[Location]) -> None:
    """Remove the values at these locations; where one is missing, remove the table around it."""

    def target(location: Location) -> Location:
        node: Any = tables
        for depth, part in enumerate(location):
            try:
                node = node[part]
            except (KeyError, IndexError, TypeError):  # TypeError: a mistake about a table's name
                return location[:depth]
        return location

    def later_first(location: Location) -> list[tuple[bool, int | str]]:
        return [(isinstance(part, int), part) for part in location]

    for *parents, last in sorted(set(map(target, locations)), key=later_first, reverse=True):
        node: Any = tables
        for part in parents:
            node = node[part]
        del node[last]
