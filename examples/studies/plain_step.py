"""Compare the inner step of a Gemma 3 preset with the same step written plainly in JAX and optax.

    python examples/studies/plain_step.py [--preset NAME] [--set compute_dtype=bfloat16] [--json]

The plain step uses nothing of this project: a loop over the layers, `optax.adamw` with clipping and
a schedule, one `jax.jit` with donated arguments. Both start from equal parameters and take turns on
windows of steps. Their losses must agree in the first window; later ones are printed, too, as
rounding grows with the steps. The exit code is 1 if the step of this project takes more than 1.05
times as long, or if the losses differ. Needs no Ray.
"""

import argparse
import json
import math
import platform
import sys
import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from archipelago.lab.bench.accelerator_device import ADAMW
from archipelago.lab.bench.stats import interval_of, median
from coordinator.errors import UserMistake
from islands.gemma.language_task import language_model, spec_named
from islands.inner import Inner
from islands.mesh import Devices
from islands.sources import STDLIB, DataSpec

LARGEST_RATIO = 1.05
LARGEST_DIFFERENCE = {"float32": 1e-3, "bfloat16": 2e-2}
"""The largest relative difference of the losses, by type of the computations."""
SPREAD = 0.02
"""The standard deviation of the drawn parameters; the norms of Gemma 3 are 0 at first."""
OURS = replace(ADAMW, learning_rate=1e-3, horizon_steps=1000)
"""The optimizer of both steps; the plain one reads the numbers only."""


def rms_norm(x, weight):
    """Apply RMSNorm as Gemma 3 does."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide * (1 + weight)).astype(x.dtype)


def rope(x, base):
    """Rotate the halves of each head, [B, T, N, K], by the angles of their positions."""
    time_, size = x.shape[1], x.shape[-1]
    angles = np.arange(time_)[:, None] * base ** (-np.arange(0, size, 2) / size)
    cosine, sine = (jnp.asarray(f(angles)[:, None], x.dtype) for f in (np.cos, np.sin))
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)


def plain_layer(shape, layer, x, kind):
    """Compute one layer of Gemma 3; `x`: [B, T, D]."""
    layer = jax.tree.map(lambda leaf: leaf.astype(x.dtype) if leaf.ndim > 1 else leaf, layer)
    attention, mlp = layer["attention"], layer["mlp"]
    batch, time_, _ = x.shape
    base = shape.local_rope_base if kind == "local" else shape.global_rope_base
    normed = rms_norm(x, attention["norm"])
    queries = (normed @ attention["query"]).reshape(batch, time_, shape.heads, shape.head_size)
    keys = (normed @ attention["key"]).reshape(batch, time_, shape.kv_heads, shape.head_size)
    values = (normed @ attention["value"]).reshape(batch, time_, shape.kv_heads, shape.head_size)
    queries = rope(rms_norm(queries, attention["query_norm"]), base)
    keys = rope(rms_norm(keys, attention["key_norm"]), base)
    queries = queries.reshape(batch, time_, shape.kv_heads, -1, shape.head_size)
    scores = jnp.einsum("btmrk,bsmk->bmrts", queries, keys, preferred_element_type=jnp.float32)
    behind = np.arange(time_)[:, None] - np.arange(time_)[None]
    seen = (behind >= 0) & ((behind < shape.window) | (kind == "global"))
    scores = jnp.where(seen, scores * shape.head_size**-0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bmrts,bsmk->btmrk", weights, values).reshape(batch, time_, -1)
    x = x + rms_norm(mixed @ attention["output"], attention["post_norm"])
    normed = rms_norm(x, mlp["norm"])
    hidden = jax.nn.gelu(normed @ mlp["gate"], approximate=True) * (normed @ mlp["up"])
    return x + rms_norm(hidden @ mlp["down"], mlp["post_norm"])


def plain_loss(shape, params, tokens):
    """Return the mean nats per predicted token of windows [B, T + 1]."""
    dtype = jnp.dtype(shape.compute_dtype)
    table = params["embedding"]
    x = table[tokens[:, :-1]].astype(dtype) * jnp.asarray(math.sqrt(shape.width), dtype)
    for kind, layer in zip(shape.kinds, params["layers"], strict=True):
        x = plain_layer(shape, layer, x, kind)
    x = rms_norm(x, params["norm"])
    logits = jnp.einsum("btd,vd->btv", x, table.astype(dtype), preferred_element_type=jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def plain_rate(step):
    """Return the learning rate of a step: a linear warm-up, then half a cosine."""
    warmup, floor = OURS.warmup_steps, OURS.floor_fraction
    done = jnp.clip((step - warmup) / (OURS.horizon_steps - warmup), 0, 1)
    falling = floor + (1 - floor) * 0.5 * (1 + jnp.cos(jnp.pi * done))
    return OURS.learning_rate * jnp.minimum(1, (step + 1) / warmup) * falling


class Plain:
    """The step that a person would write without this project."""

    def __init__(self, shape, params):
        """Copy the parameters, with one tree for each layer."""
        moments = OURS.b1, OURS.b2, OURS.eps
        adamw = optax.adamw(plain_rate, *moments, weight_decay=OURS.weight_decay)
        self._optimizer = optax.chain(optax.clip_by_global_norm(OURS.clip_norm), adamw)
        self._params = jax.tree.map(jnp.array, by_layer(shape, params))
        self._moments = self._optimizer.init(self._params)

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(params, moments, tokens):
            loss, gradients = jax.value_and_grad(partial(plain_loss, shape))(params, tokens)
            updates, moments = self._optimizer.update(gradients, moments, params)
            return optax.apply_updates(params, updates), moments, loss

        self._step = step

    def steps(self, batches):
        """Take a step on each batch; return the losses."""
        losses = []
        for tokens in batches:
            self._params, self._moments, loss = self._step(self._params, self._moments, tokens)
            losses.append(loss)
        return losses


class Ours:
    """The step of an island."""

    def __init__(self, task, params, batch):
        """Compile the step for batches like this one."""
        self._inner = Inner(task, OURS, Devices(task, devices=jax.local_devices()[:1]))
        self._inner.compile(batch)
        self._state, self._clock = self._inner.start(params), 0

    def steps(self, batches):
        """Take a step on each batch; return the losses."""
        losses = []
        for tokens in batches:
            self._state, measures = self._inner.step(self._state, tokens, self._clock)
            self._clock += 1
            losses.append(measures.loss)
        return losses


def by_layer(shape, params):
    """Return the parameters with a tree for each layer in place of the stacks of each kind."""
    layers, stacks = [], params["layers"]
    for number, kind in enumerate(shape.kinds):
        row = shape.kinds[:number].count(kind)
        layers.append(jax.tree.map(lambda leaf, row=row: leaf[row], stacks[kind]))
    return {"embedding": params["embedding"], "norm": params["norm"], "layers": layers}


def drawn(task, seed):
    """Draw all parameters away from their initial values, on the host."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: SPREAD * rng.standard_normal(leaf.shape, np.float32), task.shapes
    )


def timed(call, batches):
    """Return the mean seconds of a step, until all losses are computed, and the losses."""
    began_s = time.perf_counter()
    losses = [float(loss) for loss in jax.block_until_ready(call(batches))]
    return (time.perf_counter() - began_s) / len(batches), losses


def shape_of(preset, options):
    """Return the shape of a preset.

    Errors: `UserMistake` if it has a feature that the plain step does not have.
    """
    shape = spec_named(preset, options)
    if shape.generation != 3 or shape.global_rope_scale != 1 or shape.query_scalar or shape.softcap:
        raise UserMistake(
            f"{preset}: the plain step is a Gemma 3 without scaled positions or scores and without "
            "a bound of the logits, such as gemma-1m or gemma-3-270m"
        )
    return shape


def compare(given):
    """Return the figures."""
    shape = shape_of(given.preset, dict(each.split("=", 1) for each in given.set))
    data = DataSpec(STDLIB, None, False, 5.0, given.window, 0, 256)
    task = language_model(given.preset, shape, data)
    rng = np.random.default_rng(given.seed)
    lengths = (given.sequences, given.window + 1)
    batches = [rng.integers(0, shape.vocabulary, lengths, np.int32) for _ in range(given.steps)]
    params = drawn(task, given.seed)
    sides = {"plain": Plain(shape, params), "ours": Ours(task, params, batches[0])}
    found = {name: timed(side.steps, batches)[1] for name, side in sides.items()}  # compiles
    times = {name: [] for name in sides}
    for number in range(given.pairs):
        for name in ("plain", "ours") if number % 2 else ("ours", "plain"):
            seconds, losses = timed(sides[name].steps, batches)
            times[name].append(1e3 * seconds)
            found[name] += losses
    ratios = [ours / plain for ours, plain in zip(times["ours"], times["plain"], strict=True)]
    first = zip(found["ours"][: given.steps], found["plain"], strict=False)
    return {
        "device": jax.local_devices()[0].device_kind,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "optax": optax.__version__,
        "preset": given.preset,
        "compute_dtype": shape.compute_dtype,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(task.shapes)),
        "tokens_per_step": given.sequences * given.window,
        "steps": given.steps,
        "pairs": given.pairs,
        "plain_ms": median(times["plain"]).value,
        "ours_ms": median(times["ours"]).value,
        **interval_of("ratio", median(ratios)),
        "loss_difference": max(abs(a - b) / abs(b) for a, b in first),
        "ours_losses": [found["ours"][0], *found["ours"][given.steps - 1 :: given.steps]],
        "plain_losses": [found["plain"][0], *found["plain"][given.steps - 1 :: given.steps]],
    }


def main(arguments=None):
    """Compare, print the figures, and return the exit code."""
    parser = argparse.ArgumentParser(description="the inner step beside the same step in plain JAX")
    parser.add_argument("--preset", default="gemma-1m", help="a preset of Gemma 3")
    parser.add_argument("--set", action="append", default=[], metavar="a=b")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10, help="steps in a window")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of windows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        figures = compare(given)
    except UserMistake as error:
        parser.error(str(error))
    if given.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:16} {value}")
    same = figures["loss_difference"] <= LARGEST_DIFFERENCE[figures["compute_dtype"]]
    return int(not same or figures["ratio_high"] > LARGEST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
