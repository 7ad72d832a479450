"""What a field of the configuration may hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator
from pydantic_core import PydanticCustomError

from coordinator.codec import Wire

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
GROUP = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
TOPOLOGY = r"^[1-9]\d*(x[1-9]\d*)+$"
TARGET = r"^[\w.]+:[\w.]+$"
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(pattern=NAME, max_length=80)]
GroupName = Annotated[str, Field(pattern=GROUP, max_length=40)]
RATES: Mapping[str, float] = {"muon": 16e-3, "adamw": 6e-3}
"""The inner optimizer's learning rate, where none is given: measured (docs/ablations.md)."""


class Mode(StrEnum):
    """How islands train together (docs/baselines.md)."""

    DECOUPLED = "decoupled"
    DATA_PARALLEL = "data-parallel"
    ELASTIC = "elastic-data-parallel"
    DILOCO = "diloco"
    STREAMING = "streaming"

    @property
    def sums_gradients(self) -> bool:
        """At every step, over all islands; the others merge what islands have learned."""
        return self in (Mode.DATA_PARALLEL, Mode.ELASTIC)

    @property
    def lock_step(self) -> bool:
        """Islands merge what they have learned, and wait for each other to do so."""
        return self in (Mode.DILOCO, Mode.STREAMING)


LARGEST_SEED = 2**32 - 1  # what a JAX key takes without 64-bit mode


def grace_value(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    why = 'must be "auto" or a number of seconds, 0 or more'
    raise PydanticCustomError("grace", "{why}", {"why": why})


def overlap_value(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    why = 'must be "auto" or a number of steps, 0 or more'
    raise PydanticCustomError("overlap", "{why}", {"why": why})


def rate_value(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    why = 'must be "auto" or a number above 0'
    raise PydanticCustomError("rate", "{why}", {"why": why})


def every_value(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    why = 'must be "auto" or a number of merges, 1 or more'
    raise PydanticCustomError("every", "{why}", {"why": why})


def with_a_rate(optimizer: object) -> object:
    """Whoever names the kind and no rate gets the one that suits it."""
    if not isinstance(optimizer, dict):
        return optimizer
    given: dict[str, object] = optimizer
    rate = RATES.get(str(given.get("kind")))
    return given if rate is None else {"learning_rate": rate, **given}


def with_the_rest(mesh: object) -> object:
    """Whoever leaves an axis out has it of 1, or fsdp of what the others leave, if they do."""
    if not isinstance(mesh, dict):
        return mesh
    given: dict[str, object] = mesh
    return {"data": 1, "fsdp": 1 if -1 in given.values() else -1, "tensor": 1, **given}


def mesh_size(value: int) -> int:
    if value == -1 or value >= 1:
        return value
    why = "must be 1 or more, or -1 for what the other axes leave"
    raise PydanticCustomError("mesh_size", "{why}", {"why": why})


def option_value(value: object) -> object:
    if not isinstance(value, bool | int | float | str):
        raise PydanticCustomError("option", "must be a number, text, true or false")
    return value


def interval_value(value: object) -> object:
    """H, or `[[from, H], ...]`: each from a syncer step on, the first from 0."""
    if _is_count(value):
        return value
    pairs = [_pair(each) for each in value] if isinstance(value, list | tuple) else []
    froms = [first for pair in pairs if pair is not None for first in pair[:1]]
    if not pairs or len(froms) < len(pairs):
        raise PydanticCustomError(
            "every", "must be a count of steps, or stretches such as [[0, 8], [48, 24]]"
        )
    if froms[0] != 0 or froms != sorted(set(froms)):
        raise PydanticCustomError(
            "every", "its stretches must begin at 0, and each later than the one before"
        )
    return tuple(pairs)


def _pair(value: object) -> tuple[int, int] | None:
    match value:
        case [int(first), int(every)] if first >= 0 and _is_count(every):
            return first, every
        case _:
            return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _every_plainly(value: int | tuple[tuple[int, int], ...]) -> int | list[list[int]]:
    return value if isinstance(value, int) else [list(pair) for pair in value]


Interval = Annotated[
    int | tuple[tuple[int, int], ...],
    PlainValidator(interval_value),
    PlainSerializer(_every_plainly, return_type=int | list[list[int]]),
]
Grace: TypeAlias = Literal["auto"] | float
Every: TypeAlias = Literal["auto"] | int
Rate: TypeAlias = Literal["auto"] | float
Overlap: TypeAlias = Literal["auto"] | int
OptionValue = Annotated[bool | int | float | str, PlainValidator(option_value)]
MeshSize = Annotated[int, AfterValidator(mesh_size)]
ModeName = Annotated[Mode, Field(strict=False)]
WireName = Annotated[Wire, Field(strict=False)]


def nearest(given: str, known: Sequence[str]) -> str:
    if close := get_close_matches(given, known, n=1):
        return f"did you mean {close[0]}?"
    return f"known are {', '.join(known)}" if known else "none is known"
