"""The check whether a task reads its held-out data from `data.source`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from islands.sources import DataSpec
from islands.task import Task

SOURCE_KEYS = frozenset({"source", "mixture"})
"""The fields of a `DataSpec` that name a source."""


class _SourceRead(BaseException):
    """A read of the source; no `except Exception` of the user's code catches it."""


class _WithoutSource(DataSpec):
    """Data settings whose source cannot be read; all other fields can."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name in SOURCE_KEYS:
            raise _SourceRead
        return super().__getattribute__(name)


def reads_source(make: Callable[[DataSpec], Task], data: DataSpec, batch_size: int) -> bool:
    """Return whether the held-out data of a task depends on `data.source` or `data.mixture`.

    The source need not exist: the check ends at the first read of one of these fields. If there is
    none, the first held-out batch of the task has been read.

    `make`: the data settings -> the task; `batch_size`: examples of a held-out batch.

    Errors: `UserMistake` if the task cannot be made, or its own data cannot be read.
    """
    given = {field.name: getattr(data, field.name) for field in fields(data)}
    try:
        make(_WithoutSource(**given)).heldout(batch_size)[0]
    except _SourceRead:
        return True
    return False
