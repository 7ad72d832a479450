"""Equinox with dropout and batch normalization: two islands learn to read images of digits.

python -m archipelago.examples.digits_equinox
"""

import sys

import equinox as eqx
import jax
import numpy as np
import optax

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


class Model(eqx.Module):
    """A small network with batch statistics and dropout."""

    hidden: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    output: eqx.nn.Linear

    def __init__(self, key):
        """Make the layers."""
        keys = jax.random.split(key)
        self.hidden = eqx.nn.Linear(64, 128, key=keys[0])
        self.norm = eqx.nn.BatchNorm(128, "batch", momentum=0.9, mode="batch")
        self.drop = eqx.nn.Dropout(0.2)
        self.output = eqx.nn.Linear(128, 10, key=keys[1])

    def __call__(self, x, state, key):
        """Return the scores of the ten classes of one image, [10], and the new state."""
        hidden, state = self.norm(self.hidden(x.ravel()), state)
        return self.output(self.drop(jax.nn.relu(hidden), key=key)), state


def logits(model, state, x, key):
    """Return the scores of a batch, [batch, 10], and the new state."""
    mapped = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
    return mapped(x, state, jax.random.split(key, len(x)))


def loss(model, state, batch, key):
    """Return the mean loss of a batch, the new state, and the accuracy."""
    scores, state = logits(model, state, batch["x"], key)
    nats = optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]).mean()
    return nats, (state, {"accuracy": (scores.argmax(-1) == batch["y"]).mean()})


def task(data):
    """Return the task: this model on these images."""
    return ap.equinox_task(Model, loss, data, examples=digits, classes=10)


def main():
    """Train, and try the model on new images."""
    overrides = {"run.steps": int(sys.argv[1])} if sys.argv[1:] else {}
    with ap.Run(CONFIG, overrides, task=task) as run:
        run.start()
        result = run.wait(progress=True)
    model, state = ap.equinox_model(Model, result.parameters())
    new = digits(1000, seed=1)
    scores, _ = logits(model, state, new["x"], jax.random.key(0))
    right = (scores.argmax(-1) == new["y"]).mean()
    print(f"held-out loss {result.heldout_loss:.3f}, {right:.0%} of 1000 new images are right")


if __name__ == "__main__":
    main()
