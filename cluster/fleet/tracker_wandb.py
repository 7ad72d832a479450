"""The tracker `wandb`: Weights & Biases, configured by its environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import wandb

from cluster.fleet.tracker import TrackedRun

PROJECT = "archipelago"
"""The project, unless `WANDB_PROJECT` names another."""


class WandbTracker:
    """A tracker of W&B with the axes `tokens` and `t`; its run has the identity of ours."""

    def start(self, run: TrackedRun) -> None:
        """Begin a run of W&B, or continue it after `--resume`."""
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=run.run_id,
            resume="allow",
            dir=str(run.run_dir),
            config=None if run.resumed else {**run.config},
            reinit="create_new",
        )
        for axis in ("t", "tokens"):
            self._run.define_metric(axis, hidden=True)
        self._run.define_metric("*", step_metric="tokens")

    def log(self, values: Mapping[str, float], t: int, tokens: int, unix_s: float) -> None:
        """Log the values in one row with both axes."""
        self._run.log({**values, "t": t, "tokens": tokens, "unix_s": unix_s})

    def end(self, summary: Mapping[str, Any]) -> None:
        """Set the summary, and finish; a run without a summary counts as failed."""
        self._run.summary.update({f"final/{key}": value for key, value in summary.items()})
        self._run.finish(exit_code=0 if summary else 1)
