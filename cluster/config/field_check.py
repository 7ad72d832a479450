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
    """The fields that it reads. The loader skips the check if one of them is already invalid."""
    problems: Finder
    """A function that yields the problems of a configuration."""


def reads(*fields: str) -> Callable[[Finder], FieldCheck]:
    """Return a decorator that turns a function into a check of these fields."""
    return lambda problems: FieldCheck(fields, problems)
