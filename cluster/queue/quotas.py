"""The quotas of a cluster: a TOML file with limits for owners of runs.

`archipelago queue --set FILE` stores it in the cluster. The comment above a key is its
documentation.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from cluster.config.problem_text import problem_of
from cluster.config.table import Table
from cluster.config.values import Amount, nearest
from coordinator.errors import UserMistake
from coordinator.machine_room import ISLANDS


class Quota(Table):
    """The limits of one owner, summed over all runs; a missing one does not limit."""

    islands: Annotated[int, Field(ge=0)] | None = None
    """Islands that may hold machines at once."""
    resources: dict[str, Amount] = Field(default={})
    """Ray resources that islands may hold at once, for example {GPU = 16}."""

    @property
    def limits(self) -> dict[str, float]:
        """The limits by name, for the rule."""
        islands = {} if self.islands is None else {ISLANDS: float(self.islands)}
        return islands | self.resources


class Quotas(Table):
    """The file of quotas."""

    default: Quota = Quota()
    """Limits of each owner that is not named."""
    owners: dict[str, Quota] = Field(default={})
    """Limits of owners, by `run.owner`: tables [owners.NAME]."""

    def of(self, owner: str) -> dict[str, float]:
        """Return the limits of an owner, by resource; "islands" counts islands."""
        return self.owners.get(owner, self.default).limits


def read_quotas(path: Path) -> Quotas:
    """Read a file of quotas.

    Errors: `UserMistake` with every problem.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        return Quotas.model_validate(tables)
    except OSError as error:
        raise UserMistake(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserMistake(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        lines = [f"  {_problem(each)}" for each in error.errors(include_url=False)]
        count = f"{len(lines)} problem{'s' if len(lines) > 1 else ''}"
        raise UserMistake("\n".join([f"{path}: {count}", *lines])) from error


def _problem(mistake: ErrorDetails) -> str:
    """Return the message about one mistake in the file."""
    *parents, key = mistake["loc"]
    if mistake["type"] != "extra_forbidden":
        return str(problem_of(mistake))
    known = tuple((Quota if parents else Quotas).model_fields)
    return f"{'.'.join(map(str, mistake['loc']))}: is not known; {nearest(str(key), known)}"
