"""LoRA on a frozen base: two islands adapt a network to images that lie on their side.

The islands train and send two thin matrices for each layer. The base stays in its file.

python -m archipelago.examples.lora
"""

import hashlib
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.numpy import save_file

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


SIZES = {"first": (64, 128), "second": (128, 128), "output": (128, 10)}


def turned(count=4000, seed=2):
    """Return images of digits that lie on their side."""
    upright = digits(count, seed)
    return {"x": np.rot90(upright["x"], axes=(1, 2)).copy(), "y": upright["y"]}


def logits(weights, x):
    """Return the scores of the ten classes, [batch, 10]."""
    seen = jax.nn.relu(x.reshape(len(x), 64) @ weights["first"])
    return jax.nn.relu(seen @ weights["second"]) @ weights["output"]


def adapted(params, base):
    """Return the weights of the base, each with its change of low rank."""
    return {name: base[name] + params[name]["a"] @ params[name]["b"] for name in SIZES}


def loss_of(weights, batch):
    """Return the mean loss of a batch, and its accuracy."""
    scores = logits(weights, batch["x"])
    nats = optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"]).mean()
    return nats, {"accuracy": (scores.argmax(-1) == batch["y"]).mean()}


def loss(params, batch, frozen):
    """Return the loss of the adapted weights."""
    return loss_of(adapted(params, frozen), batch)


def init(key, rank):
    """Return the change of each layer: a [inputs, rank] and b [rank, outputs], b zero at first."""
    keys = dict(zip(SIZES, jax.random.split(key, len(SIZES)), strict=True))
    return {
        name: {"a": jax.random.normal(keys[name], (n, rank)) / n**0.5, "b": jnp.zeros((rank, m))}
        for name, (n, m) in SIZES.items()
    }


def task(data, base, sha256, rank=4):
    """Return the task: the low-rank changes of the base in a file, on the turned images."""
    frozen = ap.frozen_file(base, sha256)
    return ap.supervised_task(
        lambda key: init(key, rank), loss, turned, data, classes=10, frozen=frozen
    )


def trained_base(steps=400):
    """Return weights that read upright digits, trained in this process."""
    keys = jax.random.split(jax.random.key(0), len(SIZES))
    weights = {
        name: jax.random.normal(key, size) * (2 / size[0]) ** 0.5
        for key, (name, size) in zip(keys, SIZES.items(), strict=True)
    }
    adam = optax.adam(3e-3)

    @jax.jit
    def step(weights, moments, batch):
        gradient, _ = jax.grad(loss_of, has_aux=True)(weights, batch)
        updates, moments = adam.update(gradient, moments)
        return optax.apply_updates(weights, updates), moments

    images, draws, moments = digits(), np.random.default_rng(0), adam.init(weights)
    for _ in range(steps):
        rows = draws.integers(0, len(images["y"]), 64)
        weights, moments = step(weights, moments, {name: x[rows] for name, x in images.items()})
    return {name: np.asarray(x) for name, x in weights.items()}


def main():
    """Train a base, adapt it on two islands, and try both on new images."""
    overrides = {"run.steps": int(sys.argv[1])} if sys.argv[1:] else {}
    with tempfile.TemporaryDirectory() as folder:
        path, base = Path(folder, "base.safetensors"), trained_base()
        save_file(base, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        options = {"task.options.base": str(path), "task.options.sha256": digest}
        with ap.Run(CONFIG, {**overrides, **options}, task=task) as run:
            run.start()
            result = run.wait(progress=True)
    leaves = result.parameters()
    params = {name: {k: leaves[f"{name}/{k}"] for k in ("a", "b")} for name in SIZES}
    new = turned(1000, seed=3)
    for name, weights in {"base": base, "adapted": adapted(params, base)}.items():
        number, metrics = loss_of(weights, new)
        print(f"{name}: loss {number:.3f}, {metrics['accuracy']:.0%} of 1000 turned images")
    trained, frozen = result.summary["parameters"], sum(x.size for x in base.values())
    print(f"trained and sent: {trained:,} parameters; frozen: {frozen:,}")


if __name__ == "__main__":
    main()
