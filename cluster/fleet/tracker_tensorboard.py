"""The tracker `tensorboard`: event files in the folder `tensorboard` of the run directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingTypeStubs]

from cluster.fleet.tracker import TrackedRun
from cluster.storage.files import json_text

FOLDER = "tensorboard"
"""The folder of the event files in the run directory."""
FLUSH_S = 5
"""Seconds until a value is in the file at the latest."""


class TensorBoardTracker:
    """A tracker that writes each value twice: by syncer step and by tokens trained.

    TensorBoard has one integer as its x axis, so the two are its runs `t` and `tokens`.
    """

    def start(self, run: TrackedRun) -> None:
        """Open the event files; a resumed run adds further ones, without the configuration."""
        folder = run.run_dir / FOLDER
        unique = f".{time.time_ns()}"  # a file of the same second would be overwritten
        self._by_t, self._by_tokens = (
            SummaryWriter(str(folder / axis), flush_secs=FLUSH_S, filename_suffix=unique)
            for axis in ("t", "tokens")
        )
        if not run.resumed:
            text = json_text(run.config, indent=2)
            self._by_t.add_text("configuration", f"```json\n{text}\n```", 0)

    def log(self, values: Mapping[str, float], t: int, tokens: int, unix_s: float) -> None:
        """Write the values at both steps."""
        for writer, step in ((self._by_t, t), (self._by_tokens, tokens)):
            for name, value in values.items():
                writer.add_scalar(name, value, step, walltime=unix_s)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, and close the files."""
        if summary:
            text = json_text(summary, indent=2)
            self._by_t.add_text("summary", f"```json\n{text}\n```", 0)
        self._by_t.close()
        self._by_tokens.close()
