"""A tracker that writes a CSV file: `archipelago.examples.csv_tracker:CsvTracker`."""

import csv
from collections.abc import Mapping
from typing import Any

from archipelago import TrackedRun


class CsvTracker:
    """A line of `curve.csv` for each held-out loss: step, tokens of all islands, and the loss."""

    def start(self, run: TrackedRun) -> None:
        """Open the file in the run directory; a resumed run appends to it."""
        self._file = (run.run_dir / "curve.csv").open("a", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)

    def log(self, values: Mapping[str, float], t: int, tokens: int, unix_s: float) -> None:
        """Write a line if the model was evaluated."""
        if "eval/loss" in values:
            self._rows.writerow([t, tokens, values["eval/loss"]])
            self._file.flush()

    def end(self, summary: Mapping[str, Any]) -> None:
        """Write the final loss, and close the file."""
        self._rows.writerow(["end", summary.get("tokens_trained"), summary.get("heldout_loss")])
        self._file.close()
