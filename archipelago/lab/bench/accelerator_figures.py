"""The figures from all parts of `bench accelerator`: rows, gaps, and the steps of the study.

These are plain functions of the files of the parts, without JAX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KEYS = (
    "step_ms",
    "step_with_hooks_ms",
    "hook_fraction",
    "encode_gb_s",
    "adopt_gb_s",
    "memory_gb_s",
)
"""The keys of each row, besides `preset` and `peak_bytes`; null where there is no figure."""
BASE = "data-parallel"
"""The arm that the others are compared with."""
ARMS: Mapping[str, int] = {BASE: 0, "h8": 8, "h24": 24}
"""The arms of the study and their H; 0 means that gradients are summed at each step."""
STEPS, QUICK_STEPS = 1000, 24
"""The steps of the study, in full and in the quick form."""
CYCLE = max(ARMS.values())
"""The number of steps of which a shortened study has a multiple."""
STUDY_SHARE = 0.7
"""The share of the time after the trials that the steps of the study are planned to take."""


def row(found: Mapping[str, Any], why: str) -> dict[str, object]:
    """Return a preset's row with every key; `why` is the reason for missing figures."""
    memory = found.get("hooks", {}).get("memory") or found.get("memory", {}).get("step", {})
    on_device = memory.get("device_peak_bytes")
    peak = memory.get("host_peak_bytes") if on_device is None else on_device
    full_row: dict[str, object] = {**dict.fromkeys(KEYS), **found, "peak_bytes": peak}
    full_row["peak_bytes_of"] = "host process" if on_device is None else "device"
    if missing := [key for key in (*KEYS, "peak_bytes") if full_row[key] is None]:
        full_row["not_measured"] = dict.fromkeys(missing, why)
    return full_row


def planned_steps(arms: Sequence[Mapping[str, Any]], wanted: int, left_s: float) -> int:
    """Return the number of steps that all arms have time for, at most `wanted`.

    A smaller number is a multiple of the longest H.
    """
    slowest_s = max(float(arm["s_per_step"]) for arm in arms)
    compile_s = max(float(arm["compile_s"]) for arm in arms)
    possible = int(STUDY_SHARE * max(0.0, left_s - compile_s) / slowest_s)
    return wanted if possible >= wanted else possible // CYCLE * CYCLE


def gaps(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, object]:
    """Compare the held-out loss of the arms with that of data-parallel, in per cent.

    They are compared at their ends, or at the last step at which both were evaluated. `gap_percent`
    is the gap of H = 24. A gap is null where nothing can be compared.
    """
    base = arms.get(BASE, {})
    found: dict[str, object] = {}
    for arm, every in ARMS.items():
        if arm == BASE:
            continue
        name = "gap_percent" if every == CYCLE else f"gap_percent_{arm}"
        pair = _pair(arms.get(arm, {}), base)
        step, loss, base_loss = pair or (None, None, None)
        found[name] = None if loss is None or not base_loss else 100 * (loss / base_loss - 1)
        found[f"{name}_at_step"] = step
    return found


def _pair(arm: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[int, float, float] | None:
    """Return a step and the losses of both arms there; None if they have no step in common."""
    if {"heldout_loss", "steps"} <= arm.keys() & base.keys() and arm["steps"] == base["steps"]:
        return arm["steps"], arm["heldout_loss"], base["heldout_loss"]
    curves = [{x["t"]: x["heldout_loss"] for x in each.get("curve", [])} for each in (arm, base)]
    common = curves[0].keys() & curves[1].keys()
    return (max(common), curves[0][max(common)], curves[1][max(common)]) if common else None
