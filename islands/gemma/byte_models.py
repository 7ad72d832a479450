"""The byte models as Gemma shapes, so that `costs` covers them: for estimates, not for training."""

from __future__ import annotations

from islands.gemma.spec import GemmaSpec
from islands.model import ModelSpec


def alike(spec: ModelSpec) -> GemmaSpec:
    """Return the Gemma shape with the same layers, heads and widths.

    Its norms differ by a few vectors, and its output head is its embedding: each multiplies a token
    once.
    """
    return GemmaSpec(
        vocabulary=spec.vocabulary,
        width=spec.width,
        layers=spec.layers,
        hidden=spec.hidden,
        heads=spec.heads,
        kv_heads=spec.heads,
        head_size=spec.width // spec.heads,
        pattern="G",
        compute_dtype=spec.compute_dtype,
    )
