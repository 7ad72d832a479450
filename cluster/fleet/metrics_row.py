"""The rows of `metrics.jsonl`: a status, and the same figures as flat columns for data frames."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, TypedDict, cast

from cluster.fleet.run_identity import SCHEMA
from cluster.status import Figures, RunStatus
from cluster.storage.files import json_text
from cluster.storage.metrics_log import MEGABYTE

CURVE_SKETCHED = 32
"""The most points of the held-out curve in each line of metrics.jsonl."""
FEW_ISLANDS, ISLAND_BYTES = 32, 600
"""The most islands of which each look has a line, and the bytes of an island in a line."""
COMPLETE_S = 900.0
"""Seconds for which all lines stay, at least; older ones may be thinned out."""


class MetricsColumns(TypedDict):
    """The columns of a row that a status does not have."""

    schema: int
    """The version of these columns."""
    unix_s: float
    """The time of the row, in seconds since 1970."""
    heldout_loss: float | None
    """The newest held-out loss, in nats per token; None: none yet."""
    heldout_t: int | None
    """The syncer step of the model of `heldout_loss`."""
    train_loss: float | None
    """The mean loss of the live islands' last steps, in nats per token; None: not known."""
    expected_loss: float | None
    """The held-out loss that was expected of `heldout_loss`'s model; None: none was."""
    expected_low: float | None
    """The lower end of its band."""
    expected_high: float | None
    """The upper end of its band."""


COLUMNS = frozenset(MetricsColumns.__annotations__) | frozenset(Figures.__annotations__)
"""The flat columns of a row: those of `MetricsColumns`, and each field of `figures`."""


def columns(status: RunStatus, unix_s: float) -> dict[str, object]:
    """Return the flat columns of a status; a figure that is not measured yet is None."""
    t, loss = status["heldout"][-1] if status["heldout"] else (None, None)
    losses = [
        each["loss"]
        for each in status["islands"]
        if each["state"] == "live" and each["loss"] is not None and math.isfinite(each["loss"])
    ]
    expected = status.get("expected")
    own: MetricsColumns = {
        "schema": SCHEMA,
        "unix_s": unix_s,
        "heldout_loss": loss,
        "heldout_t": t,
        "train_loss": fmean(losses) if losses else None,
        "expected_loss": None if expected is None else expected["loss"],
        "expected_low": None if expected is None else expected["low"],
        "expected_high": None if expected is None else expected["high"],
    }
    figures = status["figures"] or dict.fromkeys(Figures.__annotations__)
    return {**own, **figures}


def sketched(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most `CURVE_SKETCHED` points of a curve, evenly spread; the last is the newest."""
    if len(curve) <= CURVE_SKETCHED:
        return [*curve]
    last = CURVE_SKETCHED - 1
    return [curve[point * (len(curve) - 1) // last] for point in range(CURVE_SKETCHED)]


def interval_s(islands: int, metrics_mb: int) -> float:
    """Return the least number of seconds between two lines of so many islands.

    `metrics_mb`: the largest size of the file in megabytes; its newest half is never thinned out.
    """
    if islands <= FEW_ISLANDS:
        return 0.0
    return COMPLETE_S * islands * ISLAND_BYTES / (metrics_mb * MEGABYTE / 2)


def metrics_line(status: RunStatus, unix_s: float) -> str:
    """Return a status as a line of metrics.jsonl; `unix_s`: its time, in seconds since 1970."""
    row = {**columns(status, unix_s), **status, "heldout": sketched(status["heldout"])}
    row.pop("events", None)  # they are in events.jsonl
    return json_text(row)


def last_status(status: RunStatus, summary: Mapping[str, object]) -> RunStatus:
    """Return the status at the end of a run, with the losses of the final model, if any."""
    loss = summary.get("sample_heldout_loss")  # over the same windows as the points before
    curve = status["heldout"]
    if isinstance(loss, float):  # in place of an earlier point of the same step
        curve = [*(point for point in curve if point[0] != status["t"]), (status["t"], loss)]
    last: RunStatus = {**status, "heldout": curve}
    found = cast("dict[str, float | None]", summary.get("heldout_by_region") or {})
    known = {name: loss for name, loss in found.items() if loss is not None}
    if known:
        last["heldout_by_region"] = {**status.get("heldout_by_region", {}), **known}
        last["heldout_by_region_t"] = {
            **status.get("heldout_by_region_t", {}),
            **dict.fromkeys(known, status["t"]),
        }
    return last


def status_of_row(text: str | bytes) -> RunStatus:
    """Parse a status or a row, whose flat columns are left out.

    A loss of the curve that is null was not finite, and becomes NaN.

    Errors: `ValueError` if it is not JSON.
    """
    row: dict[str, Any] = json.loads(text)
    status = cast(RunStatus, {key: row[key] for key in row if key not in COLUMNS})
    curve: list[tuple[int, float | None]] = [*status.get("heldout", [])]
    return {**status, "heldout": [(t, math.nan if x is None else x) for t, x in curve]}
