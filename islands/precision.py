"""The precision of a task's loss: bfloat16 or float16 copies of float32 parameters, and remat.

The parameters that are trained, merged and saved are float32, whatever `init` returns: small steps
would be lost in bfloat16, which has 8 significant bits. The loss gets copies in its own type, and
the gradient of a copy is a gradient of its float32 original. Frozen arrays are only read, so they
are cast once, when they are loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from islands.state_tree import is_state, named_arguments
from islands.task import Batch, Params, Task, leaf_path

HALVES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
"""The types of which we keep float32 originals."""
REMAT: Mapping[str, Any] = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "all": jax.checkpoint_policies.nothing_saveable,
}
"""Values of `task.remat` with the policy for what a backward pass finds saved."""


@dataclass(frozen=True)
class InitInFloat32:
    """A task's `init` with bfloat16 and float16 leaves in float32; it can what that `init` can."""

    task: Task
    """The task with its own `init`."""

    def __call__(self, seed: int) -> Params:
        """Return the initial parameters."""
        return jax.tree.map(_in_float32, self.task.init(seed))

    def shapes(self) -> Params:
        """Return the parameters as `jax.ShapeDtypeStruct`."""
        return jax.tree.map(_shape_in_float32, self.task.shapes)

    @property
    def user_callable(self) -> Any:
        """The task's own `init`, for `islands.user_lines.place_of`."""
        return self.task.init

    def __getattr__(self, name: str) -> Any:
        """Return what the task's `init` has beside its call, such as `leaf` for single leaves.

        Errors: `AttributeError` if it does not have it.
        """
        found: Any = getattr(self.task.init, name)
        if name == "leaf":
            return lambda path, seed: _in_float32(found(path, seed))
        if name == "initial_leaves":
            return lambda seed: map(_in_float32, found(seed))
        return found


@dataclass(frozen=True)
class LossInPrecision:
    """A loss whose parameters come as copies in other types; see `in_precision`."""

    loss: Callable[..., Any]
    task: Task
    """The task with its own `init`."""
    dtype: str | None
    """The type of all parameters and of the real arrays of a batch; None: as `init` has them."""
    remat: str | None

    def __call__(self, params: Params, batch: Batch, **named: Any) -> Any:
        """Return what the loss returns, its number in float32."""
        call = self._call
        if self.remat is not None:
            call = jax.checkpoint(call, policy=REMAT[self.remat])
        return call(params, batch, named)

    @property
    def user_callable(self) -> Any:
        """The task's own loss, for `islands.user_lines.place_of`."""
        return self.loss

    @property
    def __signature__(self) -> inspect.Signature:
        """The named arguments of the loss, beside parameters and batch."""
        kinds = {"params": inspect.Parameter.POSITIONAL_ONLY}
        kinds |= {"batch": inspect.Parameter.POSITIONAL_ONLY}
        kinds |= dict.fromkeys(sorted(named_arguments(self.loss)), inspect.Parameter.KEYWORD_ONLY)
        return inspect.Signature([inspect.Parameter(name, kind) for name, kind in kinds.items()])

    def _call(self, params: Params, batch: Batch, named: Mapping[str, Any]) -> Any:
        copies = jax.tree.map(lambda leaf, kind: leaf.astype(kind), params, self._kinds)
        if self.dtype is not None:
            batch = jax.tree.map(self._of_batch, batch)
        result = self.loss(copies, batch, **named)
        if isinstance(result, tuple) and len(result) == 2:
            return _in_float32(result[0]), result[1]
        return _in_float32(result)

    @cached_property
    def _kinds(self) -> Params:
        """The type of each leaf in the loss."""

        def kind(keys: Any, leaf: Any) -> Any:
            is_own = self.dtype is None or (is_state(leaf_path(keys)) and self.task.init_state)
            return leaf.dtype if is_own else jnp.dtype(self.dtype)

        return jax.tree_util.tree_map_with_path(kind, self.task.shapes)

    def _of_batch(self, leaf: Any) -> Any:
        return _in_type(leaf, self.dtype)


@dataclass(frozen=True)
class FrozenInPrecision:
    """A task's `frozen` with its real arrays in another type."""

    frozen: Callable[[], Any]
    dtype: str

    def __call__(self) -> Any:
        """Return the frozen arrays; each original is freed once it is cast.

        Errors: what the task's `frozen` raises.
        """
        leaves, structure = jax.tree.flatten(self.frozen())
        leaves.reverse()
        cast = list[Any]()
        while leaves:
            cast.append(_in_type(leaves.pop(), self.dtype))
        return jax.tree.unflatten(structure, cast)

    @property
    def user_callable(self) -> Any:
        """The task's own `frozen`, for `islands.user_lines.place_of`."""
        return self.frozen


def in_precision(task: Task, dtype: str | None, remat: str | None) -> Task:
    """Return the task with float32 parameters, and a loss that gets copies in its own types.

    `dtype`: "bfloat16" or "float16" for all parameters (not the state), and for the real arrays of
    a batch and of `frozen`; None: each leaf in the type that `init` gives it. `remat`: what the
    backward pass computes again instead of keeping it: "dots" (all but matrix products), "all", or
    None.
    """
    if dtype is None and remat is None and not _has_halves(task):
        return task
    wrapped = LossInPrecision(task.loss, task, dtype, remat)
    evaluated = None if task.eval_loss is None else replace(wrapped, loss=task.eval_loss)
    frozen = task.frozen
    if frozen is not None and dtype is not None:
        frozen = FrozenInPrecision(frozen, dtype)
    return replace(task, init=InitInFloat32(task), loss=wrapped, eval_loss=evaluated, frozen=frozen)


def _has_halves(task: Task) -> bool:
    try:
        leaves = jax.tree.leaves(task.shapes)
    except Exception:  # noqa: BLE001 - the checks of a start report it with its line
        return False
    return any(getattr(leaf, "dtype", None) in HALVES for leaf in leaves)


def _in_type(leaf: Any, dtype: str | None) -> Any:
    kind = getattr(leaf, "dtype", None)
    is_real = kind is not None and jnp.issubdtype(kind, jnp.floating)
    return leaf.astype(dtype) if is_real else leaf


def _in_float32(leaf: Any) -> Any:
    return leaf.astype(jnp.float32) if getattr(leaf, "dtype", None) in HALVES else leaf


def _shape_in_float32(leaf: Any) -> Any:
    if leaf.dtype not in HALVES:
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, jnp.float32)
