"""The inner optimizer: the direction of a step, and its length.

It is AdamW, Muon, or a target of the user's own (`islands.optimizer_target`).

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

from islands import schedules
from islands.optimizer_target import descent, load_target
from islands.task import Option, Params, Task, leaf_path

OptimizerKind: TypeAlias = Literal["adamw", "muon"]
MUON_RMS = 0.2
"""The root mean square of a step before the learning rate, as AdamW's usually is.

The value is from arXiv:2502.16982.
"""


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """The table `[optimizer]`.

    The rate grows linearly over `warmup_steps`, falls by `schedule` to `floor_fraction` of its
    height at `horizon_steps`, and stays there.
    """

    kind: OptimizerKind
    """The built-in optimizer; it has no effect beside a target."""
    target: str | None
    """The user's own transformation in place of a built-in one, as module:attribute."""
    options: tuple[tuple[str, Option], ...]
    """Keyword arguments of the target."""
    schedule: str
    """"cosine", "wsd", "target" (the rate is 1), or the user's function, as module:attribute."""
    decay_fraction: float
    """The last part of the horizon, over which "wsd" falls."""
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
    pickled: str | None = None
    """The function of the target itself; `target` is then only its name."""
    loss_scale: float | Literal["dynamic"] = 1.0
    """The factor of gradients within the backward pass, or "dynamic" (`islands.loss_scale`)."""
    loss_scale_steps: int = 2000
    """Steps with a finite gradient after which a dynamic scale is doubled."""

    @property
    def constant_scale(self) -> float:
        """The factor if it is constant.

        Errors: `ValueError` if it is not.
        """
        return float(self.loss_scale)

    def rate(self, clock: jax.typing.ArrayLike) -> jax.Array:
        """Return the learning rate of the step that starts at this clock, a float32 scalar."""
        warmup, horizon, floor = self.warmup_steps, self.horizon_steps, self.floor_fraction
        step = jnp.asarray(clock, jnp.float32)
        match self.schedule:
            case "cosine":
                share = schedules.cosine(step, warmup, horizon, floor)
            case "wsd":
                share = schedules.wsd(step, warmup, horizon, floor, self.decay_fraction)
            case schedules.OF_TARGET:
                return jnp.ones((), jnp.float32)
            case target:
                return schedules.of_user(target, clock)
        return self.learning_rate * schedules.warm_up(step, warmup) * share


def updated(
    spec: OptimizerSpec,
    transformation: optax.GradientTransformationExtraArgs,
    gradients: Params,
    state: tuple[Params, optax.OptState],
    clock: jax.Array,
) -> tuple[Params, optax.OptState]:
    """Return parameters and moments after one step, at the rate of this clock.

    `transformation`: that of `direction`. `state`: parameters and moments before the step.
    """
    params, moments = state
    directions, moments = transformation.update(gradients, moments, params, clock=clock)
    rate = spec.rate(clock)
    updates = jax.tree.map(lambda u: -rate * u, directions)
    return optax.apply_updates(params, updates), moments


def direction(spec: OptimizerSpec, task: Task) -> optax.GradientTransformationExtraArgs:
    """Return the transformation of gradients to the directions of the step, before the rate.

    A step goes against its direction. Updates take the learner's `clock` as a keyword argument.

    Errors: `UserMistake` if there is no such target, or if it is no transformation.
    """
    if spec.target is not None:
        return descent(load_target(spec.target, dict(spec.options), spec.pickled))
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
    chain = optax.chain(*clip, scaled, optax.add_decayed_weights(spec.weight_decay))
    return optax.with_extra_args_support(chain)


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
