"""Plain JAX: two islands on this machine learn to read made-up images of digits.

python -m archipelago.examples.digits_jax
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import archipelago as ap

CONFIG = {
    "run": {"steps": 300},
    "data": {"heldout_percent": 10.0, "lease_windows": 256},
    "optimizer": {"kind": "adamw", "learning_rate": 1e-2, "warmup_steps": 20},
    "sync": {"every": 8, "fragments": 2},
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


def init(key):
    """Return the initial parameters."""
    keys = jax.random.split(key)
    return {
        "hidden": {"w": jax.random.normal(keys[0], (64, 128)) / 8, "b": jnp.zeros(128)},
        "output": {"w": jax.random.normal(keys[1], (128, 10)) / 12, "b": jnp.zeros(10)},
    }


def logits(params, x):
    """Return the scores of the ten classes, [batch, 10]."""
    hidden, output = params["hidden"], params["output"]
    seen = jax.nn.relu(x.reshape(len(x), 64) @ hidden["w"] + hidden["b"])
    return seen @ output["w"] + output["b"]


def loss(params, batch):
    """Return the mean loss of a batch, and its accuracy."""
    scores = jax.nn.log_softmax(logits(params, batch["x"]))
    chosen = jnp.take_along_axis(scores, batch["y"][:, None], axis=-1)
    return -chosen.mean(), {"accuracy": (scores.argmax(-1) == batch["y"]).mean()}


def task(data):
    """Return the task: this model on these images."""
    return ap.supervised_task(init, loss, digits, data, classes=10)


def main():
    """Train, and try the model on new images."""
    overrides = {"run.steps": int(sys.argv[1])} if sys.argv[1:] else {}
    with ap.Run(CONFIG, overrides, task=task) as run:
        run.start()
        result = run.wait(progress=True)
    leaves = result.parameters()
    params = {n: {k: leaves[f"{n}/{k}"] for k in ("w", "b")} for n in ("hidden", "output")}
    new = digits(1000, seed=1)
    right = (np.asarray(logits(params, new["x"])).argmax(-1) == new["y"]).mean()
    print(f"held-out loss {result.heldout_loss:.3f}, {right:.0%} of 1000 new images are right")


if __name__ == "__main__":
    main()
