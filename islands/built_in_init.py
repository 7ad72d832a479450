"""The `init` of the built-in transformer, which can make single leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from islands import model
from islands.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Drawn:
    """The built-in model's `init`; it has its shapes, and can draw single leaves."""

    spec: ModelSpec

    def __call__(self, seed: int) -> model.ModelParams:
        """Return the initial parameters."""
        return model.init(self.spec, seed)

    def shapes(self) -> model.ModelParams:
        """Return the parameters as `jax.ShapeDtypeStruct`."""
        return model.shapes(self.spec)

    def leaf(self, path: str, seed: int) -> Any:
        """Return one leaf of the initial parameters."""
        return model.init_leaf(self.spec, path, seed)
