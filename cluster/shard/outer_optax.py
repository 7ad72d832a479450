"""An optax transformation as outer optimizer: more general than our own step, and slower.

The state of the transformation is kept as one flat f32 array in place of our momentum, so integers
in it are exact up to 2**24. JAX is imported at first use, and runs on the shard's CPUs.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cluster.config.values import nearest
from coordinator.errors import UserMistake
from coordinator.fragments import Flat

if TYPE_CHECKING:
    import jax


Moved: TypeAlias = "tuple[jax.Array, jax.Array]"
"""The new master and the new state."""


def _unknown(make: Callable[..., object], options: Mapping[str, Any]) -> str:
    """Return the unknown options, and those that `make` has; empty if it has them all."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # no signature is available; the call will fail by itself
        return ""
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return ""
    known = [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY]
    unknown_names = [name for name in options if name not in known]
    hints = [f"{name} is no option of it; {nearest(name, known)}" for name in unknown_names]
    return "; ".join([*hints, f"it has {', '.join(known)}"]) if unknown_names else ""


class OptaxOuter:
    """The target `sync.outer.target`, such as "optax:adam", called with `sync.outer.options`."""

    def __init__(self, target: str, options: Mapping[str, Any]) -> None:
        """Load the target and call it.

        Errors: `UserMistake` if the result is not a gradient transformation.
        """
        import optax

        module, _, attribute = target.partition(":")
        setting = f"sync.outer.target = {target!r} with options {dict(options)}"
        try:
            factory = getattr(importlib.import_module(module), attribute)
            if unknown := _unknown(factory, options):
                raise UserMistake(f"{setting}: {unknown}")
            transformation = factory(**options)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise UserMistake(f"{setting}: {error}") from error
        if not isinstance(transformation, optax.GradientTransformation):
            raise UserMistake(
                f"{setting} is {type(transformation).__name__}, not an optax transformation"
            )
        self._transformation = transformation
        self._of_size = cache(self._compiled)

    def fresh(self, master: Flat) -> Flat:
        """Return the state before the first step, f32 of shape [k]."""
        from jax.flatten_util import ravel_pytree

        return np.array(ravel_pytree(self._transformation.init(master))[0], np.float32)

    def step(self, master: Flat, state: Flat, delta: Flat) -> None:
        """Move `master` with -`delta` as its gradient and update `state`, both in place."""
        new_master, new_state = self._of_size(master.size)(master, state, delta)
        master[:], state[:] = new_master, new_state

    def _compiled(self, size: int) -> Callable[[Any, Any, Any], Moved]:
        import jax
        import jax.numpy as jnp
        from jax.flatten_util import ravel_pytree
        from optax import apply_updates

        _, unravel = ravel_pytree(self._transformation.init(jnp.zeros(size)))

        @jax.jit
        def step(master: jax.Array, state: jax.Array, delta: jax.Array) -> Moved:
            updates, new_state = self._transformation.update(-delta, unravel(state), master)
            new_master: Any = apply_updates(master, updates)
            return new_master, ravel_pytree(new_state)[0]

        return step
