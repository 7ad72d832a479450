"""Fragments are taken out of the parameters and put back: values and buffer ownership."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinator.fragments import sew
from coordinator.fragments import take as take_on_host
from coordinator.protocol import Fragment
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.inner import Inner
from islands.task import Batch, Params, Task
from tests.given import optimizer_spec

BLEND = 0.25


def no_data(batch_size: int) -> Any:
    raise AssertionError("nothing here reads data")


def loss(params: Params, batch: Batch) -> jax.Array:
    return sum(
        (jnp.mean((leaf - batch[0]) ** 2) for leaf in jax.tree.leaves(params)), jnp.zeros(())
    )


def make_task() -> Task:
    """Return a task with every kind of leaf: stacked layers, an embedding, a vector, a scalar."""
    shapes = {"blocks": {"in": (3, 4, 2), "out": (3, 2)}, "embedding": (7, 2), "rest": [(5,), ()]}

    def init(seed: int) -> Params:
        rng = np.random.default_rng(seed)
        is_shape = lambda node: isinstance(node, tuple)  # noqa: E731
        draw = lambda shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
        return jax.tree.map(lambda s: np.asarray(draw(s)), shapes, is_leaf=is_shape)

    return Task(
        name="every kind of leaf",
        vocabulary=2,
        init=init,
        loss=loss,
        tokens=lambda batch: 1,
        stream=no_data,
        heldout=no_data,
        stacked=lambda path: path.startswith("blocks/"),
        embedding=lambda path: path == "embedding",
    )


TASK = make_task()
LAYOUT = layout_of(TASK, 8)
"""A layout in which one fragment is a whole leaf, `rest/0`, whose buffer could be aliased."""
FRAGMENTS = [Fragment(p) for p in range(8)]


def leaves_of(params: Params) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in jax.tree.leaves(params)]


def flats_of(params: Params) -> list[np.ndarray]:
    return [take_on_host(LAYOUT, p, leaves_of(params)) for p in FRAGMENTS]


@pytest.fixture(scope="module", params=AdoptRule)
def port(request: pytest.FixtureRequest) -> FragmentPort:
    return FragmentPort(LAYOUT, request.param, BLEND)


@pytest.fixture(scope="module")
def overwriting() -> FragmentPort:
    return FragmentPort(LAYOUT, AdoptRule.OVERWRITE)


@pytest.fixture(scope="module")
def inner() -> Inner:
    return Inner(TASK, optimizer_spec())


def test_layout_follows_the_task() -> None:
    leaves = {leaf.path: leaf for leaf in LAYOUT.leaves}
    assert set(leaves) == {"blocks/in", "blocks/out", "embedding", "rest/0", "rest/1"}
    assert {path for path, leaf in leaves.items() if leaf.stacked} == {"blocks/in", "blocks/out"}
    assert {path for path, leaf in leaves.items() if leaf.embedding} == {"embedding"}
    assert leaves["blocks/in"].shape == (3, 4, 2)
    assert layout_of(TASK, 8).fingerprint == LAYOUT.fingerprint != layout_of(TASK, 7).fingerprint
    alone = [LAYOUT.leaves[pieces[0].leaf].path for pieces in LAYOUT.fragments if len(pieces) == 1]
    assert "rest/0" in alone


def test_take_returns_the_fragment_of_the_layout(overwriting: FragmentPort) -> None:
    params = jax.tree.map(jnp.asarray, TASK.init(1))
    for p, wanted in zip(FRAGMENTS, flats_of(params), strict=True):
        np.testing.assert_array_equal(overwriting.take(params, p), wanted)


def adopted(
    rule: AdoptRule, mine: np.ndarray, public: np.ndarray, origin: np.ndarray
) -> np.ndarray:
    match rule:
        case AdoptRule.OVERWRITE:
            return public
        case AdoptRule.CARRY:
            return public + (mine - origin)
        case AdoptRule.BLEND:
            return np.float32(BLEND) * mine + np.float32(1 - BLEND) * public


@pytest.mark.parametrize("p", FRAGMENTS)
def test_put_follows_the_adopt_rule_and_keeps_other_fragments(
    port: FragmentPort, p: Fragment
) -> None:
    mine, public, origin = (flats_of(TASK.init(seed)) for seed in (1, 2, 3))
    params = jax.tree.map(jnp.asarray, TASK.init(1))
    after = port.put(params, p, jnp.asarray(public[p]), jnp.asarray(origin[p]))
    wanted = [*mine[:p], adopted(port.rule, mine[p], public[p], origin[p]), *mine[p + 1 :]]
    assert jax.tree.structure(after) == jax.tree.structure(TASK.init(1))
    for found, leaf in zip(leaves_of(after), sew(LAYOUT, wanted), strict=True):
        np.testing.assert_allclose(found, leaf, rtol=1e-6)


@pytest.mark.parametrize("rule", [AdoptRule.OVERWRITE, AdoptRule.CARRY])
def test_adopting_the_present_values_changes_no_bit(rule: AdoptRule) -> None:
    port = FragmentPort(LAYOUT, rule)
    params = jax.tree.map(jnp.asarray, TASK.init(1))
    before = leaves_of(params)
    for p in FRAGMENTS:
        flat = port.take(params, p)
        params = port.put(params, p, flat, flat)
    for found, wanted in zip(leaves_of(params), before, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_put_donates_the_buffers_it_is_given(overwriting: FragmentPort) -> None:
    """The leaves are not held twice."""
    for p in FRAGMENTS:
        params = jax.tree.map(jnp.asarray, TASK.init(1))
        flat = jnp.asarray(flats_of(TASK.init(2))[p])
        overwriting.put(params, p, flat, flat)
        touched = {piece.leaf for piece in LAYOUT.fragments[p]}
        used_up = {i for i, leaf in enumerate(jax.tree.leaves(params)) if leaf.is_deleted()}
        assert used_up == touched
        assert not flat.is_deleted(), "the public fragment is the next origin"


def test_taken_fragment_survives_a_step_that_donates_parameters(
    overwriting: FragmentPort, inner: Inner
) -> None:
    state = inner.start(TASK.init(1))
    wanted = flats_of(TASK.init(1))
    taken = [overwriting.take(state.params, p) for p in FRAGMENTS]
    before = jax.tree.leaves(state.params)
    for clock in range(3):
        state, _ = inner.step(state, np.ones(1, np.float32), clock)
    assert all(leaf.is_deleted() for leaf in before)
    for flat, kept in zip(taken, wanted, strict=True):
        np.testing.assert_array_equal(flat, kept)
    assert not np.array_equal(flats_of(state.params)[0], wanted[0]), "the step has moved them"


def test_compiles_only_ahead_of_time(inner: Inner, caplog: pytest.LogCaptureFixture) -> None:
    port = FragmentPort(LAYOUT, AdoptRule.CARRY)
    params = inner.start(TASK.init(1)).params
    public = [inner.place_flat(flat, flat.size) for flat in flats_of(TASK.init(2))]
    with jax.log_compiles():
        port.compile(inner.place(TASK.zeros()))
        assert "Compiling" in caplog.text
        caplog.clear()
        for p in FRAGMENTS:
            params = port.put(params, p, public[p], port.take(params, p))
            assert port.ready(params, p) is not None
        assert caplog.text == ""
