"""A task of a user's own with its data, `task.target = "archipelago.examples.small_task:task"`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import archipelago as ap


def task(data: ap.DataSpec, inputs: int = 8) -> ap.Task:
    """Return a logistic regression: on which side of a plane is a point?"""

    def examples() -> dict[str, Any]:
        points = np.random.default_rng(0).standard_normal((16_384, inputs)).astype(np.float32)
        return {"x": points, "y": (points.sum(axis=1) > 0).astype(np.int32)}

    def init(key: jax.Array) -> Any:
        return {"w": jax.random.normal(key, (inputs, 2)), "b": jnp.zeros(2)}

    def loss(params: Any, batch: Any) -> jax.Array:
        logits = batch["x"] @ params["w"] + params["b"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    return ap.supervised_task(init, loss, examples, data, classes=2)
