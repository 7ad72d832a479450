"""The task of this run: which model is trained, on which data, with which loss.

Everything here is plain JAX. Parameters are a tree of float32 arrays, a batch is an array, and the
loss is a pure function. Replace the model with your own and leave the rest as it is.
"""

import jax
import jax.numpy as jnp

import archipelago

BYTES = 256
CONTEXT = 8


def task(data: archipelago.DataSpec, width: int = 64) -> archipelago.Task:
    """Return the task. `width` is an option: `[task.options]` in run.toml sets it."""
    return archipelago.text_task(
        lambda key: init(key, width), loss, data, vocabulary=BYTES, text=logits
    )


def init(key: jax.Array, width: int) -> dict[str, jax.Array]:
    """Return the initial parameters."""
    keys = jax.random.split(key, 3)
    seen, hidden = CONTEXT * width, 4 * width
    return {
        "embedding": 0.02 * jax.random.normal(keys[0], (BYTES, width)),
        "hidden": jax.random.normal(keys[1], (seen, hidden)) / seen**0.5,
        "output": jax.random.normal(keys[2], (hidden, BYTES)) / hidden**0.5,
    }


def logits(params: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
    """Return the scores of the byte after each position, from the CONTEXT bytes before it."""
    embedded = params["embedding"][tokens]  # [batch, tokens, width]
    padded = jnp.pad(embedded, ((0, 0), (CONTEXT - 1, 0), (0, 0)))
    count = tokens.shape[1]
    seen = jnp.concatenate([padded[:, i : i + count] for i in range(CONTEXT)], axis=-1)
    return jax.nn.gelu(seen @ params["hidden"]) @ params["output"]


def loss(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    """Return the mean loss of predicting each byte of a batch, [batch, window + 1]."""
    scores, targets = logits(params, batch[:, :-1]), batch[:, 1:]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), targets[..., None], axis=-1)
    return -chosen.mean()
