"""The results that functions of the Python API return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run that has ended."""

    run_dir: Path
    """The directory with model, summary, metrics and log."""
    summary: Mapping[str, Any]
    """Every figure of `summary.json`."""

    @property
    def heldout_loss(self) -> float:
        """The held-out loss of the final model, in nats per token."""
        return float(self.summary["heldout_loss"])

    @property
    def model_path(self) -> Path:
        """The path of the model, a safetensors file with one array for each parameter."""
        return self.run_dir / "model.safetensors"

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the final model: float32 arrays by the paths of their leaves."""
        return arrays_of(self.model_path)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of replaying a run from its log."""

    exact: bool
    """True if everything that could be compared was equal, and something could be compared."""
    events: int
    """The number of events in the log."""
    figures: Mapping[str, object]
    """Everything that `archipelago replay --json` prints."""


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Return the float32 arrays of a saved model, one file or the files of its index."""
    from islands.parameter_files import SafetensorsFiles

    source = SafetensorsFiles(path)
    return {name: source.read(name) for name in source.leaves}
