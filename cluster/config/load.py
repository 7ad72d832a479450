"""The configuration of a run: TOML, checked once at the door, printed and hashed.

`load` reads the file and the `--set` overrides and returns a `Config`, or one `UserMistake` with
every problem in it. Everything behind the door may rely on what is checked here. Where a problem
lies is said the way `--set` takes it: `sync.every`, `islands.0.count`.
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
from cluster.config.modes import resolved, said_in
from cluster.config.override import override
from cluster.config.problem_text import Location, Problem, problem_of
from cluster.config.schema import Config
from coordinator.errors import UserMistake


@dataclass(frozen=True, slots=True)
class Draft:
    """A configuration as far as it is sound, and what is wrong with the rest of it.

    `broken`: where that is; defaults stand there.
    """

    config: Config
    origin: str
    problems: tuple[Problem, ...]
    broken: tuple[Location, ...]

    def sound(self, *reads: str) -> bool:
        """Whether these fields are as the user wrote them; `*` stands for any index."""
        return not any(_touches(location, read) for location in self.broken for read in reads)

    def accepted(self, more: Sequence[str] = ()) -> Config:
        """The configuration, if nothing is wrong with it, and nothing more was found elsewhere.

        Errors: `UserMistake` with every problem.
        """
        if not self.problems:
            if more:
                raise UserMistake("\n".join(more))
            return self.config
        found = [*map(str, self.problems), *(line for text in more for line in text.splitlines())]
        lines = dict.fromkeys(f"  {problem}" for problem in found)
        count = f"{len(lines)} problem{'s' if len(lines) > 1 else ''}"
        raise UserMistake("\n".join([f"{self.origin}: {count}", *lines]))


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read, override (`a.b=c`), check. Refuses with every problem at once (`UserMistake`)."""
    return read(path, overrides).accepted()


def read(path: Path | str, overrides: Sequence[str] = ()) -> Draft:
    """Read and override, for a caller that has more to check. Refuses only what is no TOML
    (`UserMistake`)."""
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
    return draft(tables, origin=str(path), overrides=overrides)


def _directory(path: Path) -> str:
    """Return what to say where a configuration should be and a directory is."""
    if not (path / "config.toml").exists():
        return f"{path} is a directory: a configuration is a file, such as run.toml"
    return (
        f"{path} is the directory of a run: to go on with that run use "
        f"`archipelago run {path / 'config.toml'} --resume --run-dir {path}`"
    )


def parse(
    tables: Mapping[str, Any], *, origin: str = "configuration", overrides: Sequence[str] = ()
) -> Config:
    """Check tables as a TOML file holds them, with the overrides (`a.b=c`) applied."""
    return draft(tables, origin=origin, overrides=overrides).accepted()


def draft(tables: Mapping[str, Any], *, origin: str, overrides: Sequence[str] = ()) -> Draft:
    """Find what is sound of the tables, and all that is not.

    What is wrong is reported, then taken out, so that the checks between fields still speak about
    all fields that are sound.
    """
    changed = copy.deepcopy(dict(tables))
    found = [problem for text in overrides for problem in override(changed, text)]
    config, mistakes = _salvage(changed)
    broken = [mistake["loc"] for mistake in mistakes]
    problems = [*found, *(problem_of(mistake) for mistake in mistakes)]
    between: list[Problem] = []
    if not any(_touches(location, read) for location in broken for read in ("run.mode", "islands")):
        config, between = resolved(config, said_in(config, tables, overrides))
    for check in CHECKS:
        if not any(_touches(location, read) for location in broken for read in check.reads):
            between += check.problems(config)
    broken += [tuple(problem.where.split(".")) for problem in between]
    return Draft(config, origin, (*problems, *between), tuple(broken))


def _salvage(tables: Mapping[str, Any]) -> tuple[Config, list[ErrorDetails]]:
    """What is sound of the tables, and the mistakes that were in the rest."""
    try:
        return Config.model_validate(tables), []
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    sound = copy.deepcopy(dict(tables))
    _take_out(sound, [mistake["loc"] for mistake in mistakes])
    return _salvage(sound)[0], mistakes


def _touches(location: Location, read: str) -> bool:
    """Whether the one path is the other's beginning; `*` in `read` stands for any index."""
    return all(
        part in ("*", str(found)) for found, part in zip(location, read.split("."), strict=False)
    )


def _take_out(tables: dict[str, Any], locations: Sequence[Location]) -> None:
    """Remove what is at these locations, or what should have held it if nothing is there."""

    def target(location: Location) -> Location:
        node: Any = tables
        for depth, part in enumerate(location):
            if isinstance(node, dict) and part not in node:
                return location[:depth]
            node = node[part]
        return location

    def later_first(location: Location) -> list[tuple[bool, int | str]]:
        return [(isinstance(part, int), part) for part in location]

    for *parents, last in sorted(set(map(target, locations)), key=later_first, reverse=True):
        node: Any = tables
        for part in parents:
            node = node[part]
        del node[last]
