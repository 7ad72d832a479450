"""A check between fields of a configuration, and the fields that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from cluster.config.problem_text import Problem
from cluster.config.schema import Config

Finder: TypeAlias = Callable[[Config], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class FieldCheck:
    """A check between fields."""

    reads: tuple[str, ...]
    """The fields that it reads. The check is left out if one of them is unsound already."""
    problems: Finder
    """Finds what is wrong with the configuration."""


def reads(*fields: str) -> Callable[[Finder], FieldCheck]:
    """Make a function a check that reads these fields."""
    return lambda problems: FieldCheck(fields, problems)
