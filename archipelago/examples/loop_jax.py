"""Train a model of text with a JAX training loop of your own, on two islands of this machine.

    python -m archipelago.examples.loop_jax

It takes about a minute on two cores. `train` is the loop. The comments mark the lines that make a
single-machine loop run on islands.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import optax

import archipelago as ap

BYTES, CONTEXT, WIDTH = 256, 8, 64
CONFIG = {
    "run": {"steps": 60},
    "data": {"source": "python-stdlib", "window": 64},
    "sync": {"every": 8, "fragments": 4},
    "islands": [{"count": 2, "batch_size": 8, "resources": {"CPU": 0.5}}],
}
ADAM = optax.scale_by_adam()


def task(data: ap.DataSpec) -> ap.Task:
    """Return the task: the model, its loss for the evaluation, and the loop that trains it."""
    return replace(ap.text_task(init, loss, data), loop=train)


def train() -> None:
    """Train on one island."""
    update = jax.jit(updated)
    island = ap.join()  # 1: join the run
    params = island.params  # 2: begin with its parameters
    moments = ADAM.init(params)
    while island.running:  # 3: until the run ends
        batch = island.batch  # 4: the data of this island
        rate = 6e-3 * min(1.0, (island.clock + 1) / 20)
        params, moments, value = update(params, moments, batch, rate)
        tokens = batch[:, 1:].size
        params = island.step(params, tokens, loss=value)  # 5: exchange what is due


def updated(
    params: ap.Params, moments: optax.OptState, batch: jax.Array, rate: float
) -> tuple[ap.Params, optax.OptState, jax.Array]:
    """Return parameters and moments after a step of Adam, and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(params, batch)
    directions, moments = ADAM.update(gradients, moments)
    return jax.tree.map(lambda p, d: p - rate * d, params, directions), moments, value


def init(key: jax.Array) -> dict[str, jax.Array]:
    """Return the initial parameters."""
    keys = jax.random.split(key, 3)
    seen, hidden = CONTEXT * WIDTH, 4 * WIDTH
    return {
        "embedding": 0.02 * jax.random.normal(keys[0], (BYTES, WIDTH)),
        "hidden": jax.random.normal(keys[1], (seen, hidden)) / seen**0.5,
        "output": jax.random.normal(keys[2], (hidden, BYTES)) / hidden**0.5,
    }


def loss(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    """Return the mean loss of predicting each byte from the CONTEXT bytes before it."""
    inputs, targets = batch[:, :-1], batch[:, 1:]
    embedded = jnp.pad(params["embedding"][inputs], ((0, 0), (CONTEXT - 1, 0), (0, 0)))
    seen = [embedded[:, i : i + inputs.shape[1]] for i in range(CONTEXT)]
    logits = jax.nn.gelu(jnp.concatenate(seen, axis=-1) @ params["hidden"]) @ params["output"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


if __name__ == "__main__":
    result = ap.run(CONFIG, task=task)
    before, after = result.summary["initial_heldout_loss"], result.heldout_loss
    print(f"held-out loss {before:.3f} -> {after:.3f}, model in {result.run_dir}")
