"""The values that trackers are given, by the names under which people look for them; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

from cluster.status import RunStatus

FIGURES = {
    "goodput": "goodput/goodput",
    "uptime": "goodput/uptime",
    "loss_spikes": "train/loss_spikes",
    "up_bytes": "wire/up_bytes",
    "down_bytes": "wire/down_bytes",
    "staleness": "merge/staleness",
    "grace_s": "merge/grace_s",
    "round_s": "merge/round_s",
    "outer_cosine": "merge/outer_cosine",
    "outer_rate": "merge/outer_rate",
    "tokens_merged": "tokens/merged",
    "tokens_discarded": "tokens/discarded",
    "tokens_lost": "tokens/lost",
}
"""The figures of a status that are tracked, with their names there."""
EVALUATION = "eval/loss"
"""The held-out loss, logged once for each evaluation at the step of its model.

Below it is one value for each region that evaluates.
"""
TRAINING = "train/loss"
"""The training loss: the mean of the live islands, and below it one value for each island."""
METRIC = "train/{}"
"""The name of a metric of the training loss: the mean of the live islands that report it."""


def values_of(status: RunStatus) -> dict[str, float]:
    """Return the values of a status that are known and finite, without the held-out loss."""
    return {name: value for name, value in _values(status) if math.isfinite(value)}


def evaluated_regions(status: RunStatus) -> dict[str, tuple[int, float]]:
    """Return the step of the model and the finite held-out loss of each region that has one."""
    losses, steps = status.get("heldout_by_region", {}), status.get("heldout_by_region_t", {})
    return {
        region: (steps[region], loss)
        for region, loss in losses.items()
        if loss is not None and math.isfinite(loss) and region in steps
    }


def _values(status: RunStatus) -> Iterator[tuple[str, float]]:
    losses = {
        each["island"]: each["loss"]
        for each in status["islands"]
        if each["state"] == "live" and each["loss"] is not None and math.isfinite(each["loss"])
    }
    if losses:
        yield TRAINING, sum(losses.values()) / len(losses)
    for island, loss in losses.items():
        yield f"{TRAINING}/{island}", loss
    yield from _loss_metrics(status)
    yield "throughput/tokens_per_s", status["tokens_per_s"]
    yield "islands/alive", status["alive"]
    yield "islands/wanted", status["wanted"]
    yield "merge/merges", status["merges"]
    yield "merge/participants", status["participants"]
    yield "merge/refused", sum(status["refusals"].values())
    yield "faults/injected", status["faults"]
    yield "faults/failures", sum(status["failures"].values())
    yield "tokens/trained", status["tokens_trained"]
    if (expected := status.get("expected")) is not None:
        yield "eval/expected_loss", expected["loss"]
    for figure, name in FIGURES.items():
        value = (status["figures"] or {}).get(figure)
        if isinstance(value, int | float):
            yield name, value


def _loss_metrics(status: RunStatus) -> Iterator[tuple[str, float]]:
    """Yield the mean of each metric of the loss, unless another value has that name."""
    found = dict[str, list[float]]()
    for island in status["islands"]:
        for name, value in island.get("metrics", {}).items():
            if island["state"] == "live" and value is not None:
                found.setdefault(METRIC.format(name), []).append(value)
    for name, values in found.items():
        if name != TRAINING and name not in FIGURES.values():
            yield name, fmean(values)
