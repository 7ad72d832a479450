"""The rotary positions of a configuration of transformers, in its present and its former form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

LOCAL_BASE, GLOBAL_BASE = 10_000.0, 1_000_000.0
"""The usual bases of local and global layers."""
LOCAL_NAME, GLOBAL_NAME = "sliding_attention", "full_attention"
FIELDS = ("rope_parameters", "rope_theta", "rope_local_base_freq", "rope_scaling")
"""The fields that `rotations` reads."""
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
"""The rotation of Gemma 4's global layers, if the file has none."""
KNOWN: Mapping[str, Mapping[str, frozenset[str]]] = {
    LOCAL_NAME: {"default": frozenset()},
    GLOBAL_NAME: {
        "default": frozenset(),
        "linear": frozenset({"factor"}),
        "proportional": frozenset({"partial_rotary_factor", "factor"}),
    },
}
"""The types that are implemented for each kind of layer, and the fields of each type."""


class Rotations(NamedTuple):
    """The rotary positions of a configuration."""

    options: dict[str, float]
    """Options of a `GemmaSpec`."""
    problems: list[str]
    """The reasons why they cannot be read; empty if they can."""


def rotations(config: Mapping[str, Any], generation: int) -> Rotations:
    """Read the rotary positions: `rope_parameters`, or the former fields of Gemma 3."""
    given: Any = config.get("rope_parameters") or {}
    former: Any = config.get("rope_scaling") or {}
    if not isinstance(given, dict) or not isinstance(former, dict):
        return Rotations({}, ["rope_parameters and rope_scaling must be objects"])
    problems = [f"rope_parameters.{name} is not known" for name in given if name not in KNOWN]
    usual: dict[str, Any] = {"rope_theta": config.get("rope_theta", GLOBAL_BASE)}
    usual |= PROPORTIONAL if generation == 4 else {}
    usual |= {"rope_type" if name == "type" else name: v for name, v in former.items()}
    near = {"rope_theta": config.get("rope_local_base_freq", LOCAL_BASE)}
    whole: Any = given.get(GLOBAL_NAME) or usual
    local: Any = given.get(LOCAL_NAME) or near
    for name, rope in ((GLOBAL_NAME, whole), (LOCAL_NAME, local)):
        problems += _problems(name, rope)
    if problems:
        return Rotations({}, problems)
    options = {
        "local_rope_base": local.get("rope_theta", LOCAL_BASE),
        "global_rope_base": whole.get("rope_theta", GLOBAL_BASE),
        "global_rope_scale": whole.get("factor", 1.0),
        "global_rope_share": whole.get("partial_rotary_factor", 1.0),
    }
    return Rotations({name: float(value) for name, value in options.items()}, [])


def _problems(name: str, rope: Any) -> list[str]:
    """Return why one kind of layer cannot be read."""
    where = f"rope_parameters.{name}"
    if not isinstance(rope, dict):
        return [f"{where} must be an object"]
    fields: dict[str, Any] = rope
    kind = fields.get("rope_type", "default")
    if kind not in KNOWN[name]:
        known = ", ".join(KNOWN[name])
        return [f"{where}.rope_type = {kind!r} is not implemented, only {known}"]
    return [
        f"{where}.{field} is not implemented for rope_type = {kind!r}"
        for field in fields
        if field not in KNOWN[name][kind] | {"rope_type", "rope_theta"}
    ] + [
        f"{where}.{field} = {value!r}: must be a number"
        for field, value in fields.items()
        if field != "rope_type" and type(value) not in (int, float)
    ]


def rope_parameters(
    local_base: float, global_base: float, scale: float, share: float
) -> dict[str, Any]:
    """Return the field `rope_parameters` of a configuration."""
    whole: dict[str, Any] = {"rope_type": "default", "rope_theta": global_base}
    if share != 1:
        whole |= {"rope_type": "proportional", "partial_rotary_factor": share}
    elif scale != 1:
        whole["rope_type"] = "linear"
    if scale != 1:
        whole["factor"] = scale
    return {
        LOCAL_NAME: {"rope_type": "default", "rope_theta": local_base},
        GLOBAL_NAME: whole,
    }
