"""Tests of outer optimizers from optax.

They do what optax does, and their state survives as one array.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cluster.config.load import load, parse
from cluster.shard.arrays import fresh
from cluster.shard.build import first_of, outer_of
from cluster.shard.outer_optax import OptaxOuter
from cluster.storage.fragments import Arrays
from coordinator.codec import Wire
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Leaf, cut
from coordinator.merge import MergeRule
from coordinator.outer import OuterRule, step
from coordinator.protocol import (
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Item,
    Lease,
    Life,
    Merge,
    Progress,
    Publish,
    Version,
)
from tests.given import array_shard, outer_rule

SIZE, STEPS = 31, 5


def normal(seed: int) -> Flat:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


def test_adam_equals_optax_adam_and_resumes_from_an_array() -> None:
    optimizer, master = optax.adam(0.1), normal(0)
    theta, state = jnp.asarray(master.copy()), optimizer.init(jnp.asarray(master))
    kept = OptaxOuter("optax:adam", {"learning_rate": 0.1}).fresh(master)
    for number in range(STEPS):
        delta = normal(1 + number)
        updates, state = optimizer.update(jnp.asarray(-delta), state, theta)
        theta = jnp.asarray(optax.apply_updates(theta, updates))
        again = OptaxOuter("optax:adam", {"learning_rate": 0.1})  # a process that came back
        again.step(master, kept, delta)
        np.testing.assert_allclose(master, theta, rtol=1e-6, atol=1e-6)
    assert kept.shape == (2 * SIZE + 1,), "two moments and a counter"


def test_optax_nesterov_equals_our_own() -> None:
    options = {"learning_rate": 0.7, "momentum": 0.9, "nesterov": True}
    theirs, ours = normal(0), normal(0)
    outer, momentum = OptaxOuter("optax:sgd", options), np.zeros(SIZE, np.float32)
    state = outer.fresh(theirs)
    for number in range(STEPS):
        outer.step(theirs, state, normal(1 + number))
        step(outer_rule(0.7, 0.9), ours, momentum, normal(1 + number))
    np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("target", "options", "why"),
    [
        ("optax:nadam", {"learning_rat": 1.0}, "learning_rat"),
        ("optax:adam", {"lr": 1.0}, "lr is no option of it; .*it has learning_rate, b1, b2, eps"),
        ("optax:nobody", {}, "nobody"),
        ("nowhere:adam", {"learning_rate": 1.0}, "No module named 'nowhere'"),
        ("builtins:dict", {}, "is dict, not an optax transformation"),
    ],
)
def test_invalid_outer_optimizer_is_refused(
    target: str, options: dict[str, float], why: str
) -> None:
    with pytest.raises(UserMistake, match=rf"sync\.outer\.target.*{why}"):
        OptaxOuter(target, options)


ADAM = ('sync.outer.target="optax:adam"', "sync.outer.options.learning_rate=0.1")
TABLES = {"task": {"preset": "byte-tiny"}, "islands": [{"group": "a", "count": 1}]}


@pytest.mark.parametrize(
    "outer",
    [
        outer_rule(0.7, 0.9),
        outer_rule(1, 0.9, as_long=True),
        OptaxOuter("optax:adam", {"learning_rate": 0.1}),
    ],
)
def test_last_merge_is_taken_over_without_an_outer_step(outer: OuterRule | OptaxOuter) -> None:
    """Any outer optimizer keeps its momentum or state unchanged at the last merge."""
    layout, p, life = cut([Leaf("w", (SIZE,))], 1), Fragment(0), Life(Island("a"), Incarnation(1))
    arrays = fresh([normal(0)])
    if isinstance(outer, OptaxOuter):
        arrays = {p: replace(arrays[p], momentum=outer.fresh(normal(0)))}
    shard = array_shard(
        layout,
        arrays,
        merge_rule=MergeRule.MEAN,
        outer=outer,
        wire_up=Wire.F32,
        wire_down=Wire.F32,
    )
    kept: list[Arrays] = []
    for number, last in ((1, False), (2, True)):
        id_ = ContributionId(life, p, number - 1, number)
        progress, onto = Progress(number, number, Lease(0)), Version(0, number - 1)
        said = HandIn(id_, onto, number - 1, 1, layout.fingerprint, progress)
        items = (Item(shard.receive(said, normal(number)), 1.0),)
        shard.merge(Merge(p, Version(0, number), items, "all delivered", last))
        shard.publish(Publish(p, Version(0, number), onto, (life,), (id_,)))
        now = shard.arrays(p)
        kept.append(Arrays(now.version, now.master.copy(), now.momentum.copy(), now.public.copy()))
    before, after = kept
    moved = not np.allclose(before.master, normal(0) + normal(1), atol=1e-3)
    assert moved is not (isinstance(outer, OuterRule) and outer.as_long), "the first is no longer"
    np.testing.assert_array_equal(after.master, before.master + normal(2))
    np.testing.assert_array_equal(after.momentum, before.momentum)


def test_configuration_names_the_target_and_its_options(tmp_path: Path) -> None:
    config = parse(TABLES, origin="test", overrides=ADAM)
    assert isinstance(outer_of(config), OptaxOuter)
    auto = parse(TABLES, origin="test", overrides=("sync.outer.learning_rate=auto",))
    assert outer_of(auto) == outer_rule(1.0, as_long=True)
    layout = cut([Leaf("w", (SIZE,)), Leaf("mean", (SIZE,), state=True)], 2)
    for p, size in ((0, 2 * SIZE + 1), (1, SIZE)):  # fragment 1 is state, which is averaged
        assert first_of(config, layout, Fragment(p), normal(0)).momentum.shape == (size,)
    again = tmp_path / "again.toml"
    again.write_text(config.toml())
    assert load(again) == config


def test_conflicting_outer_options_are_refused() -> None:
    with pytest.raises(UserMistake, match=r"sync\.outer\.momentum: is not for optax:adam; put it"):
        parse(TABLES, origin="test", overrides=(*ADAM, "sync.outer.momentum=0.5"))
    with pytest.raises(
        UserMistake, match=r"sync\.outer\.options: are those of a target, and there"
    ):
        parse(TABLES, origin="test", overrides=ADAM[1:])
