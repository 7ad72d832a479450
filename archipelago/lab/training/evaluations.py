"""One evaluation of the global model during training; this module imports no JAX."""

from __future__ import annotations

from typing import NamedTuple

REGION_PREFIX = "heldout_loss_in_"
"""The beginning of the figure with the loss on a region's own held-out text; the name follows."""
METRICS = "heldout_metrics"
"""The figure with the metrics that the task returns beside its held-out loss, by name."""
METRIC_PREFIX = f"{METRICS}."
"""The beginning of the name of one metric as a figure; its own name follows."""


class Evaluation(NamedTuple):
    """The global model at a syncer step."""

    t: int
    """The syncer step."""
    time_s: float
    """Virtual seconds."""
    tokens: int
    """Tokens trained until this evaluation."""
    heldout_loss: float
    """The held-out loss over a sample, in nats per token."""
