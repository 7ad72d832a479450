"""The transformer matches a naive reference, and has the properties of a language model."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from islands import model
from islands.model import ModelSpec
from islands.task import PRESETS, leaf_path

logits = jax.jit(model.logits, static_argnums=0)
loss = jax.jit(model.loss, static_argnums=0)
loss_and_grads = jax.jit(jax.value_and_grad(model.loss, 1), static_argnums=0)

SMALL = ModelSpec(vocabulary=50, width=32, layers=2, heads=2, hidden=40)


def grown(spec: ModelSpec, seed: int = 0) -> Any:
    """Return parameters as after some training, in which head and gains are not zero."""
    rng = np.random.default_rng(seed)
    params = model.init(spec, seed)
    return jax.tree.map(
        lambda leaf: leaf + 0.1 * rng.standard_normal(leaf.shape).astype(np.float32), params
    )


def tokens(spec: ModelSpec, batch: int, time: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, spec.vocabulary, (batch, time), dtype=np.int32)


def naive_logits(spec: ModelSpec, params: Any, sequence: np.ndarray) -> np.ndarray:
    """Return the logits of one sequence [T] in float64, position by position and head by head."""
    size = spec.width // spec.heads
    turns = 10_000.0 ** (-np.arange(0, size, 2) / size)

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean() + 1e-6) * (1 + gain)

    def rotate(x: np.ndarray, position: int) -> np.ndarray:
        turned = (x[: size // 2] + 1j * x[size // 2 :]) * np.exp(1j * position * turns)
        return np.concatenate([turned.real, turned.imag])

    xs = [params["embedding"][token].astype(np.float64) for token in sequence]
    for layer in range(spec.layers):
        attention = {name: leaf[layer] for name, leaf in params["blocks"]["attention"].items()}
        mlp = {name: leaf[layer] for name, leaf in params["blocks"]["mlp"].items()}
        normed = [norm(x, attention["norm"]) for x in xs]
        for t in range(len(xs)):
            heads = []
            for head in range(spec.heads):
                part = slice(head * size, (head + 1) * size)
                query = rotate((normed[t] @ attention["query"])[part], t)
                keys = [rotate((normed[s] @ attention["key"])[part], s) for s in range(t + 1)]
                weights = np.exp([query @ key / math.sqrt(size) for key in keys])
                values = [(normed[s] @ attention["value"])[part] for s in range(t + 1)]
                heads.append(np.average(values, axis=0, weights=weights))
            xs[t] = xs[t] + np.concatenate(heads) @ attention["output"]
        for t, x in enumerate(xs):
            normal = norm(x, mlp["norm"])
            gate = normal @ mlp["gate"]
            xs[t] = x + (gate / (1 + np.exp(-gate)) * (normal @ mlp["up"])) @ mlp["down"]
    return np.stack([norm(x, params["norm"]) @ params["head"] for x in xs])


def test_logits_match_a_naive_reference() -> None:
    params, batch = grown(SMALL), tokens(SMALL, 2, 9)
    ours = np.asarray(logits(SMALL, params, jnp.asarray(batch)))
    assert ours.dtype == np.float32
    for row, sequence in zip(ours, batch, strict=True):
        np.testing.assert_allclose(row, naive_logits(SMALL, params, sequence), rtol=0, atol=2e-4)


def test_loss_is_the_mean_negative_log_likelihood() -> None:
    params, batch = grown(SMALL), tokens(SMALL, 2, 9)
    wanted = []
    for sequence in batch:
        scores = naive_logits(SMALL, params, sequence[:-1])
        log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        wanted += [-log_p[i, token] for i, token in enumerate(sequence[1:])]
    found = float(loss(SMALL, params, jnp.asarray(batch)))
    assert found == pytest.approx(np.mean(wanted), abs=1e-5)


def test_initial_loss_is_log_of_the_vocabulary() -> None:
    found = float(loss(SMALL, model.init(SMALL, 0), jnp.asarray(tokens(SMALL, 2, 9))))
    assert found == pytest.approx(math.log(SMALL.vocabulary), abs=1e-5)


def test_later_token_changes_no_earlier_logit() -> None:
    params, batch = grown(SMALL), tokens(SMALL, 1, 12)
    before = np.asarray(logits(SMALL, params, jnp.asarray(batch)))
    for place in range(12):
        changed = batch.copy()
        changed[0, place] = (changed[0, place] + 1) % SMALL.vocabulary
        after = np.asarray(logits(SMALL, params, jnp.asarray(changed)))
        np.testing.assert_array_equal(after[0, :place], before[0, :place])
        assert np.all(np.any(after[0, place:] != before[0, place:], axis=-1)), "all later ones see"


def test_gradient_reaches_every_layer_of_every_leaf() -> None:
    batch = jnp.asarray(tokens(SMALL, 8, 17))
    _, grads = loss_and_grads(SMALL, grown(SMALL), batch)
    for path, grad in jax.tree_util.tree_flatten_with_path(grads)[0]:
        assert np.all(np.isfinite(grad)), path
        layers = grad if "blocks" in jax.tree_util.keystr(path) else grad[None]
        assert all(float(jnp.max(jnp.abs(layer))) > 0 for layer in layers), path


def test_rotary_scores_depend_only_on_the_distance() -> None:
    spec = ModelSpec(width=16, heads=1)
    rng = np.random.default_rng(0)
    query, key = (jnp.asarray(rng.standard_normal(16), jnp.float32) for _ in range(2))
    everywhere = jnp.ones((1, 20, 1, 1))
    rotation = model.rotation(20, spec.width, jnp.dtype("float32"))
    queries = model.rotate(query * everywhere, rotation)[0, :, 0]
    keys = model.rotate(key * everywhere, rotation)[0, :, 0]
    scores = np.asarray(queries @ keys.T)
    for distance in range(-19, 20):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-4)
    assert np.std(scores) > 0.1


@pytest.mark.long
def test_bfloat16_computes_about_the_same_and_keeps_float32_parameters() -> None:
    half = ModelSpec(50, 32, 2, 2, 40, compute_dtype="bfloat16")
    params, batch = grown(SMALL), jnp.asarray(tokens(SMALL, 8, 17))
    exact, grads = loss_and_grads(SMALL, params, batch)
    rough, rough_grads = loss_and_grads(half, params, batch)
    assert rough.dtype == jnp.float32
    assert float(rough) == pytest.approx(float(exact), abs=0.02)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(rough_grads))
    flat, rough_flat = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in (grads, rough_grads)
    )
    cosine = flat @ rough_flat / np.linalg.norm(flat) / np.linalg.norm(rough_flat)
    assert cosine > 0.99


def test_init_is_determined_by_the_seed() -> None:
    first, again, other = (jax.tree.leaves(model.init(SMALL, seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert all(leaf.dtype == np.float32 for leaf in first)


@pytest.mark.parametrize(
    ("preset", "wanted"),
    [
        ("byte-tiny", "a57512f6d63733a1f4b6389545ec198116fd99b9688098e1c148b85096e71bed"),
        ("byte-1m", "2ceec4ff8890f129d448e589e52d47321dc7bd5197284180cbb053fc04199c23"),
    ],
)
def test_initial_parameters_of_byte_presets_stay_the_same_bits(preset: str, wanted: str) -> None:
    """A seed gives the model that it gave in earlier releases."""
    digest = hashlib.sha256()
    for keys, leaf in jax.tree_util.tree_flatten_with_path(model.init(PRESETS[preset], 0))[0]:
        digest.update(f"{leaf_path(keys)} {leaf.shape} {leaf.dtype.str}".encode())
        digest.update(leaf.tobytes())
    assert digest.hexdigest() == wanted


def test_each_leaf_can_be_initialized_separately() -> None:
    """Initialization then needs memory for one leaf only."""
    for keys, leaf in jax.tree_util.tree_flatten_with_path(model.init(SMALL, 3))[0]:
        alone = model.init_leaf(SMALL, leaf_path(keys), 3)
        assert np.array_equal(np.asarray(alone), np.asarray(leaf)), leaf_path(keys)


def test_a_deep_model_equals_the_naive_one() -> None:
    deep = ModelSpec(vocabulary=20, width=16, layers=9, hidden=16)
    params, batch = grown(deep), tokens(deep, 1, 5)
    ours = np.asarray(logits(deep, params, jnp.asarray(batch)))
    np.testing.assert_allclose(ours[0], naive_logits(deep, params, batch[0]), rtol=0, atol=1e-3)
