"""The inner optimizer: the direction of a step, and its length.

AdamW (arXiv:1711.05101) divides each gradient by its own noise, and an island's batch is noisier
than the batches of all islands together: the smaller the batch, the shorter its steps. Muon (Jordan
et al. 2024; arXiv:2502.16982) makes the momentum of each hidden matrix orthogonal, so that its
steps have one length whatever the noise. All other leaves go by AdamW. Muon's steps are scaled to
the root mean square of AdamW's, so that one learning rate and one weight decay fit both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from islands.task import Params, Task, leaf_path

OptimizerKind: TypeAlias = Literal["adamw", "muon"]
MUON_RMS = 0.2
"""The root mean square of a step before the learning rate, as AdamW's usually is.

The value is from arXiv:2502.16982.
"""


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """The table `[optimizer]`.

    The rate grows linearly over `warmup_steps`, falls by half a cosine to `floor_fraction` of its
    height at `horizon_steps`, and stays there.
    """

    kind: OptimizerKind
    learning_rate: float
    """The highest learning rate."""
    warmup_steps: int
    floor_fraction: float
    """The final rate as a fraction of the highest."""
    b1: float
    """AdamW's decay of first moments."""
    b2: float
    """AdamW's decay of second moments."""
    eps: float
    """AdamW's epsilon."""
    momentum: float
    """Muon's momentum."""
    adamw_share: float
    """Beside Muon, the share of the rate for the leaves that go by AdamW.

    Their weight decay is that of all leaves.
    """
    weight_decay: float
    clip_norm: float
    """The largest global norm of a gradient; 0 for no clipping."""
    horizon_steps: int

    def rate(self, clock: jax.typing.ArrayLike) -> jax.Array:
        """Return the learning rate of the step that starts at this clock, a float32 scalar."""
        step = jnp.asarray(clock, jnp.float32)
        warm = jnp.minimum(1.0, (step + 1) / max(1, self.warmup_steps))
        falling = max(1, self.horizon_steps - self.warmup_steps)
        done = jnp.clip((step - self.warmup_steps) / falling, 0.0, 1.0)
        cosine = 0.5 * (1 + jnp.cos(jnp.pi * done))
        share = self.floor_fraction + (1 - self.floor_fraction) * cosine
        return self.learning_rate * warm * share


def direction(spec: OptimizerSpec, task: Task) -> optax.GradientTransformation:
    """Return the transformation of gradients to the directions of the step, before the rate."""
    clip = [optax.clip_by_global_norm(spec.clip_norm)] if spec.clip_norm else []
    by_adam = optax.scale_by_adam(spec.b1, spec.b2, spec.eps)
    if spec.kind == "adamw":
        scaled = by_adam
    else:

        def kinds(params: Params) -> Any:
            return jax.tree_util.tree_map_with_path(
                lambda path, leaf: "muon" if is_matrix(task, leaf_path(path), leaf) else "adamw",
                params,
            )

        others = by_adam
        if spec.adamw_share != 1:
            others = optax.chain(by_adam, optax.scale(spec.adamw_share))
        scaled = optax.partition({"muon": _orthogonal(spec.momentum), "adamw": others}, kinds)
    return optax.chain(*clip, scaled, optax.add_decayed_weights(spec.weight_decay))


def is_matrix(task: Task, path: str, leaf: Any) -> bool:
    """Return whether a leaf is a matrix of a hidden layer, or a stack of such, one for each layer.

    Embeddings and the head, which meet the vocabulary, do not count.
    """
    if task.stacked(path):
        return leaf.ndim == 3
    return leaf.ndim == 2 and not task.embedding(path) and task.vocabulary not in leaf.shape


def _orthogonal(momentum: float) -> optax.GradientTransformation:
    def last_two(tree: Params) -> Any:
        return jax.tree.map(lambda leaf: MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1), tree)

    def as_long_as_adam(tree: Params, _: Params) -> Any:
        return jax.tree.map(lambda u: MUON_RMS * math.sqrt(max(u.shape[-2:])) * u, tree)

    muon = scale_by_muon(beta=momentum, weight_dimension_numbers=last_two)
    return optax.chain(muon, optax.stateless(as_long_as_adam))
