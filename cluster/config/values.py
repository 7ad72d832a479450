"""The types of the configuration's fields, and their validators."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from coordinator.codec import Wire
from islands.own_wire import OwnWire, options_of

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
GROUP = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
TOPOLOGY = r"^[1-9]\d*(x[1-9]\d*)+$"
HTTP_ADDRESS = r"^http://[^/\s]+/?$"
TARGET = r"^[\w.]+:[\w.]+$"
SHA256 = r"^[0-9a-f]{64}$"
SHORT_SHA256 = r"^[0-9a-f]{16}$"
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ShareValue = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(pattern=NAME, max_length=80)]
GroupName = Annotated[str, Field(pattern=GROUP, max_length=40)]
SCHEDULES = ("cosine", "wsd", "target")
"""The names of the schedules of the inner learning rate."""
RATES: Mapping[str, float] = {"muon": 16e-3, "adamw": 6e-3}
"""The default learning rates of the inner optimizers, as measured (docs/lab/ablations.md)."""


class Mode(StrEnum):
    """The training strategy of a run (docs/lab/baselines.md)."""

    DECOUPLED = "decoupled"
    DATA_PARALLEL = "data-parallel"
    ELASTIC = "elastic-data-parallel"
    DILOCO = "diloco"
    STREAMING = "streaming"

    @property
    def sums_gradients(self) -> bool:
        """True if islands sum their gradients at every step; other modes merge fragments."""
        return self in (Mode.DATA_PARALLEL, Mode.ELASTIC)

    @property
    def lock_step(self) -> bool:
        """True if islands merge fragments and wait for each other at every merge."""
        return self in (Mode.DILOCO, Mode.STREAMING)


LARGEST_SEED = 2**32 - 1
"""The largest seed of a JAX key without the 64-bit mode."""


def grace_value(value: object) -> object:
    """Validate a grace window: "auto" or seconds, 0 or more."""
    if value == "auto":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    why = 'must be "auto" or a number of seconds, 0 or more'
    raise PydanticCustomError("grace", "{why}", {"why": why})


def overlap_value(value: object) -> object:
    """Validate an overlap: "auto" or a number of steps, 0 or more."""
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    why = 'must be "auto" or a number of steps, 0 or more'
    raise PydanticCustomError("overlap", "{why}", {"why": why})


def rate_value(value: object) -> object:
    """Validate an outer learning rate: "auto" or a finite number above 0."""
    if value == "auto":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    why = 'must be "auto" or a number above 0'
    raise PydanticCustomError("rate", "{why}", {"why": why})


def loss_scale_value(value: object) -> object:
    """Validate a loss scale: "dynamic" or a finite number above 0."""
    if value == "dynamic":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    why = 'must be "dynamic" or a number above 0'
    raise PydanticCustomError("loss_scale", "{why}", {"why": why})


def schedule_value(value: object) -> object:
    """Validate a schedule: the name of one of ours, or the user's function."""
    if value in SCHEDULES or (isinstance(value, str) and re.match(TARGET, value)):
        return value
    why = f"must be {', '.join(map(repr, SCHEDULES))} or look like module:attribute"
    raise PydanticCustomError("schedule", "{why}", {"why": why.replace("'", '"')})


MERGE_RULES = ("mean", "rda")
"""The names of the built-in merge rules."""


def merge_value(value: object) -> object:
    """Validate a merge rule: the name of a built-in one, or the user's function."""
    if value in MERGE_RULES or (isinstance(value, str) and re.match(TARGET, value)):
        return value
    why = 'must be "mean", "rda" or look like module:attribute'
    raise PydanticCustomError("merge", "{why}", {"why": why})


def wire_value(value: object, info: ValidationInfo) -> object:
    """Validate a wire: the name of a built-in one, or the user's codec with `wire_options`."""
    if isinstance(value, OwnWire):
        return value
    if value in [*Wire]:
        return Wire(str(value))
    if isinstance(value, str) and re.match(TARGET, value):
        return OwnWire(value, options_of(info.data.get("wire_options", {})))
    why = f"must be {', '.join(map(repr, map(str, Wire)))} or look like module:attribute"
    raise PydanticCustomError("wire", "{why}", {"why": why.replace("'", '"')})


def every_value(value: object) -> object:
    """Validate an interval between stored versions: "auto" or a number of merges, 1 or more."""
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    why = 'must be "auto" or a number of merges, 1 or more'
    raise PydanticCustomError("every", "{why}", {"why": why})


def with_a_rate(optimizer: object) -> object:
    """Add the default learning rate of the optimizer's kind to the table, if it has none."""
    if not isinstance(optimizer, dict):
        return optimizer
    given: dict[str, object] = optimizer
    rate = RATES.get(str(given.get("kind")))
    return given if rate is None else {"learning_rate": rate, **given}


def with_the_rest(mesh: object) -> object:
    """Add the missing axes of a mesh: 1 each, but all other devices for fsdp if no axis is -1."""
    if not isinstance(mesh, dict):
        return mesh
    given: dict[str, object] = mesh
    return {"data": 1, "fsdp": 1 if -1 in given.values() else -1, "tensor": 1, "expert": 1, **given}


def mesh_size(value: int) -> int:
    """Validate the size of a mesh axis: 1 or more, or -1 for all other devices."""
    if value == -1 or value >= 1:
        return value
    why = "must be 1 or more, or -1 for what the other axes leave"
    raise PydanticCustomError("mesh_size", "{why}", {"why": why})


def option_value(value: object) -> object:
    """Validate an option: a number, text or a boolean."""
    if not isinstance(value, bool | int | float | str):
        raise PydanticCustomError("option", "must be a number, text, true or false")
    return value


AUTO: Literal["auto"] = "auto"
"""The value of a key that the run chooses by itself."""


def interval_value(value: object) -> object:
    """Validate H, "auto", or `[[from, H], ...]`: each from a syncer step on, the first from 0."""
    if _is_count(value) or value == AUTO:
        return value
    pairs = [_pair(each) for each in value] if isinstance(value, list | tuple) else []
    starts = [first for pair in pairs if pair is not None for first in pair[:1]]
    if not pairs or len(starts) < len(pairs):
        raise PydanticCustomError(
            "every", 'must be a count of steps, "auto", or stretches such as [[0, 8], [48, 24]]'
        )
    if starts[0] != 0 or starts != sorted(set(starts)):
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


def _every_plainly(
    value: Literal["auto"] | int | tuple[tuple[int, int], ...],
) -> str | int | list[list[int]]:
    return [list(pair) for pair in value] if isinstance(value, tuple) else value


IntervalValue = Annotated[
    Literal["auto"] | int | tuple[tuple[int, int], ...],
    PlainValidator(interval_value),
    PlainSerializer(_every_plainly, return_type=str | int | list[list[int]]),
]
Grace: TypeAlias = Literal["auto"] | float
Every: TypeAlias = Literal["auto"] | int
Rate: TypeAlias = Literal["auto"] | float
LossScale: TypeAlias = Literal["dynamic"] | float
Overlap: TypeAlias = Literal["auto"] | int
OptionValue = Annotated[bool | int | float | str, PlainValidator(option_value)]
MeshSize = Annotated[int, AfterValidator(mesh_size)]
ModeName = Annotated[Mode, Field(strict=False)]
WireName = Annotated[Wire, Field(strict=False)]
FragmentWire = Annotated[
    Wire | OwnWire,
    PlainValidator(wire_value),
    PlainSerializer(str, return_type=str),
]


def nearest(given: str, known: Sequence[str]) -> str:
    """Return a hint for a wrong name: the most similar known one, or the list of all."""
    if matches := get_close_matches(given, known, n=1):
        return f"did you mean {matches[0]}?"
    return f"known are {', '.join(known)}" if known else "none is known"
