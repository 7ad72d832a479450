"""Text from tasks of the user's own, whose scores are the argument `text` of their makers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import archipelago as ap
from coordinator.errors import UserMistake
from islands.state_tree import in_one_tree
from islands.task import Task
from islands.text_model import Sampling, generated
from tests.given import data_spec, sums

WINDOW, VOCABULARY, WIDTH = 8, 256, 6


def init(key: jax.Array) -> Any:
    one, two = jax.random.split(key)
    return {
        "embedding": jax.random.normal(one, (VOCABULARY, WIDTH)),
        "out": jax.random.normal(two, (WIDTH, VOCABULARY)),
    }


def scores(params: Any, tokens: jax.Array) -> jax.Array:
    """Return scores that depend on all earlier tokens, and on no later one."""
    embedded = params["embedding"][tokens]
    weights = 0.5 ** jnp.arange(tokens.shape[1])[::-1]
    seen = jnp.cumsum(embedded / weights[:, None], axis=1) * weights[:, None]
    return seen @ params["out"]


def loss(params: Any, batch: Any) -> jax.Array:
    logits = scores(params, batch[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


@pytest.fixture
def data(tmp_path: Path) -> ap.DataSpec:
    return data_spec(str(sums(tmp_path / "text")), window=WINDOW, lease_windows=16)


def written(task: Task, params: Any, prompt: str, count: int) -> list[int]:
    """Return the best next tokens after a prompt."""
    assert task.text is not None
    tokens = task.text.codec.encode(prompt)
    return [*generated(task.text.decoder(), params, tokens, count, Sampling(temperature=0))]


def test_task_of_text_is_sampled_from_its_scores(data: ap.DataSpec) -> None:
    task = ap.text_task(init, loss, data, text=scores)
    params = task.init(0)
    tokens = [*b"12 ti"]
    for _ in range(3):
        tokens.append(int(scores(params, jnp.asarray([tokens]))[0, -1].argmax()))
    assert written(task, params, "12 ti", 3) == tokens[5:]
    assert task.text is not None
    assert task.text.codec.decode([*b"12"]) == "12"
    longer = written(task, params, "a prompt that no window holds", 2 * WINDOW)
    assert len(longer) == 2 * WINDOW
    assert longer[0] == written(task, params, "ow holds", 1)[0], "the last window counts"


def test_scores_get_the_state_beside_the_parameters(data: ap.DataSpec) -> None:
    def with_state(params: Any, state: Any, batch: Any) -> Any:
        return loss(params, batch), (state, {})

    task = in_one_tree(
        ap.text_task(
            init,
            with_state,
            data,
            init_state=lambda key: {"shift": jnp.zeros(VOCABULARY)},
            text=lambda params, state, tokens: scores(params, tokens) + state["shift"],
        )
    )
    tree = task.init(0)
    plain = ap.text_task(init, loss, data, text=scores)
    assert written(task, tree, "1", 2) == written(plain, tree["params"], "1", 2)
    tree["state"]["shift"] = tree["state"]["shift"].at[7].set(1e6)
    assert written(task, tree, "1", 2) == [7, 7]


def test_model_of_text_of_the_users_own_is_kept(data: ap.DataSpec) -> None:
    made = ap.TextModel.of_logits(scores, data)
    assert ap.text_task(init, loss, data, text=made).text is made
    assert ap.text_task(init, loss, data).text is None


def test_scores_of_another_shape_are_refused(data: ap.DataSpec) -> None:
    task = ap.text_task(init, loss, data, text=lambda params, tokens: scores(params, tokens)[0])
    with pytest.raises(UserMistake, match=r"\[8, 256\] for tokens \[1, 8\]: they must be \[batch,"):
        written(task, task.init(0), "1", 1)


def test_task_of_the_template_is_sampled(data: ap.DataSpec) -> None:
    task: Task = import_module("archipelago.templates.task").task(data, width=8)
    params = task.init(0)
    assert len(written(task, params, "12", 3)) == 3
    batch = task.heldout(2)[0]
    assert task.text is not None
    logits = task.text.logits(params, batch[:, :-1])
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()
    assert float(task.loss(params, batch)) == pytest.approx(float(nats), rel=1e-5)


class NnxText(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(0.9, rngs=rngs)
        self.out = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.drop(self.tokens(x)))


class LinenText(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return flax.linen.Dense(VOCABULARY)(flax.linen.Embed(VOCABULARY, WIDTH, name="tokens")(x))


class EquinoxText(equinox.Module):
    tokens: equinox.nn.Embedding
    out: equinox.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        self.tokens = equinox.nn.Embedding(VOCABULARY, WIDTH, key=key)
        self.out = equinox.nn.Linear(WIDTH, VOCABULARY, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.vmap(lambda each: self.out(self.tokens(each)))(x)


def of_model(model: Any, batch: Any) -> jax.Array:
    logits = model(batch[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


MODELS: dict[str, tuple[Callable[..., Task], Callable[[Any], Any]]] = {
    "nnx": (
        lambda data, **more: ap.nnx_task(
            NnxText, of_model, data, text=lambda model, tokens: model(tokens), **more
        ),
        lambda leaves: ap.nnx_model(NnxText, leaves),
    ),
    "linen": (
        lambda data, **more: ap.linen_task(
            LinenText(),
            lambda apply, batch, train: of_model(apply, batch),
            data,
            text=lambda apply, tokens: apply(tokens),
            **more,
        ),
        lambda leaves: lambda x: LinenText().apply(ap.linen_variables(leaves), x),
    ),
    "equinox": (
        lambda data, **more: ap.equinox_task(
            EquinoxText,
            lambda model, batch: of_model(jax.vmap(model), batch),
            data,
            text=lambda model, tokens: jax.vmap(model)(tokens),
            **more,
        ),
        lambda leaves: jax.vmap(ap.equinox_model(EquinoxText, leaves)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_model_of_a_library_is_sampled(name: str, data: ap.DataSpec) -> None:
    make, restored = MODELS[name]
    task = make(data)
    params = task.init(0)
    named, _ = jax.tree_util.tree_flatten_with_path(params)
    leaves = {
        jax.tree_util.keystr(keys, simple=True, separator="/"): np.asarray(leaf)
        for keys, leaf in named
    }
    wanted = int(restored(leaves)(jnp.asarray([[*b"1"]]))[0, -1].argmax())
    assert written(task, params, "1", 1) == [wanted]


@pytest.mark.parametrize("name", MODELS)
def test_scores_of_text_and_examples_are_not_given_together(name: str, data: ap.DataSpec) -> None:
    examples = {"x": np.zeros((300, 4), np.int32)}
    with pytest.raises(UserMistake, match=r"text= is for a model of the text of \[data\]"):
        MODELS[name][0](data, examples=lambda: examples, classes=3)
