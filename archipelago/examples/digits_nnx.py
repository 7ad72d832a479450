"""Flax NNX with dropout and batch normalization: two islands learn to read images of digits.

python -m archipelago.examples.digits_nnx
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import archipelago as ap

CONFIG = {
    "run": {"steps": 300},
    "data": {"heldout_percent": 10.0, "lease_windows": 256},
    "optimizer": {"kind": "adamw", "learning_rate": 1e-2, "warmup_steps": 20},
    "sync": {"every": 8, "fragments": 3},
    "islands": [{"group": "local", "count": 2, "batch_size": 32, "resources": {"CPU": 0.5}}],
}
GLYPHS = "75557262277174771717557117471774757711117575775717"  # 5 rows of 3 dots for each


def digits(count=4000, seed=0):
    """Return images of digits, float32 [count, 8, 8], and their classes, int32 [count]."""
    draws = np.random.default_rng(seed)
    y = draws.integers(0, 10, count)
    x = draws.normal(0.0, 0.25, (count, 8, 8))
    for image, digit in zip(x, y, strict=True):
        top, left = draws.integers(1, 3), draws.integers(2, 4)
        dots = [[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in GLYPHS[5 * digit :][:5]]
        image[top : top + 5, left : left + 3] += dots
    return {"x": x.astype("f4"), "y": y.astype("i4")}


class Model(nnx.Module):
    """A small network with batch statistics and a random stream."""

    def __init__(self, rngs):
        """Make the layers; each draws its parameters from `rngs`."""
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.output = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        """Return the scores of the ten classes, [batch, 10]."""
        hidden = self.norm(self.unnormalized(x))
        return self.output(self.drop(jax.nn.relu(hidden)))

    def unnormalized(self, x):
        """Return the values that the batch normalization takes, [batch, 128]."""
        return self.hidden(x.reshape(len(x), 64))


def loss(model, batch):
    """Return the mean loss of a batch, and its metrics.

    The metrics compare the batch statistics of the model with those of this batch.
    """
    values = model.unnormalized(batch["x"])
    running, variance = model.norm.mean[...], model.norm.var[...]
    logits = model(batch["x"])
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
    return nats, {
        "accuracy": (logits.argmax(-1) == batch["y"]).mean(),
        "mean_error": jnp.abs(running - values.mean(0)).mean() / values.std(0).mean(),
        "variance_ratio": variance.mean() / values.var(0).mean(),
    }


def task(data):
    """Return the task: this model on these images."""
    return ap.nnx_task(Model, loss, data, examples=digits, classes=10)


def main():
    """Train, and try the model on new images."""
    overrides = {"run.steps": int(sys.argv[1])} if sys.argv[1:] else {}
    with ap.Run(CONFIG, overrides, task=task) as run:
        run.start()
        result = run.wait(progress=True)
    model = ap.nnx_model(Model, result.parameters())
    new = digits(1000, seed=1)
    right = (model(new["x"]).argmax(-1) == new["y"]).mean()
    print(f"held-out loss {result.heldout_loss:.3f}, {right:.0%} of 1000 new images are right")


if __name__ == "__main__":
    main()
