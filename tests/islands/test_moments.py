"""Shared first moments at a learner follow the formula, leaf by leaf, for every optimizer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

from coordinator.codec import Wire, WithMoments, decode, split
from coordinator.fragments import Flat, Layout
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Incarnation,
    Island,
    Lease,
    Life,
    Progress,
    Publication,
    Version,
)
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.encoder import ENCODERS
from islands.exchange import Downlink, Missed, Uplink
from islands.inner import Inner, InnerState
from islands.learner_messages import HandOver, Track
from islands.model import ModelSpec
from islands.moments import MomentSharing, MomentsPort
from islands.optimizer import OptimizerKind, OptimizerSpec, is_matrix
from islands.replica import Replica
from islands.task import Task, language_model, leaf_path
from tests.given import data_spec, first_of, optimizer_spec

FRAGMENTS = 2
BATCH, TIME = 2, 8
LIFE = Life(Island("a"), Incarnation(1))
TASK = language_model("small", ModelSpec(30, 16, 1, 2, 24), data_spec())
LAYOUT = layout_of(TASK, FRAGMENTS)
PORT = FragmentPort(LAYOUT, AdoptRule.CARRY)
KINDS: tuple[OptimizerKind, ...] = ("muon", "adamw")


@cache
def made(kind: OptimizerKind) -> tuple[Inner, MomentsPort]:
    """Return an inner step and a moments port; both are compiled once and keep no state."""
    return Inner(TASK, spec_of(kind)), MomentsPort(TASK, LAYOUT, spec_of(kind))


def spec_of(kind: OptimizerKind) -> OptimizerSpec:
    return optimizer_spec(kind, learning_rate=1e-2, b1=0.8, momentum=0.9, warmup_steps=1)


def batches(seed: int, number: int) -> list[NDArray[np.int32]]:
    shape = (number, BATCH, TIME + 1)
    return list(np.random.default_rng(seed).integers(0, 30, shape).astype(np.int32))


def stepped(inner: Inner, state: InnerState, first: int, last: int, seed: int = 0) -> InnerState:
    for clock, batch in enumerate(batches(seed, last)[first:], first):
        state, _ = inner.step(state, batch, clock)
    return state


def raw(task: Task, layout: Layout, state: optax.OptState, p: Fragment) -> NDArray[np.float64]:
    """Return the first moments of a fragment from optax's state, found by the path of each leaf."""
    found = dict[str, NDArray[np.float64]]()
    for keys, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        path = leaf_path(keys)
        if "/mu/" in path:
            found[path.split("/mu/")[1]] = np.asarray(leaf, np.float64)
    assert sorted(found) == sorted(leaf.path for leaf in layout.leaves)
    leaves = [found[leaf.path] for leaf in layout.leaves]
    return np.concatenate(
        [leaves[piece.leaf][piece.index].ravel() for piece in layout.fragments[p]]
    )


def decays(kind: OptimizerKind, p: Fragment) -> NDArray[np.float64]:
    """Return beta of each element of a fragment."""
    spec, shapes = spec_of(kind), jax.tree_util.tree_flatten_with_path(TASK.shapes)[0]
    of = [
        spec.momentum if kind == "muon" and is_matrix(TASK, leaf_path(keys), leaf) else spec.b1
        for keys, leaf in shapes
    ]
    return np.concatenate([np.full(piece.size, of[piece.leaf]) for piece in LAYOUT.fragments[p]])


def shared_of(kind: OptimizerKind, p: Fragment) -> NDArray[np.bool_]:
    """Return which elements of a fragment are shared: those of Muon's leaves, or all."""
    return (decays(kind, p) == spec_of(kind).momentum) | (kind == "adamw")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_mean_replaces_the_moments_handed_in_and_keeps_later_gradients(kind: OptimizerKind) -> None:
    inner, port = made(kind)
    seen, tau = 5, 3
    for p in map(Fragment, range(FRAGMENTS)):
        state, beta = stepped(inner, inner.start(TASK.init(0)), 0, seen), decays(kind, p)
        sent = raw(TASK, LAYOUT, state.opt_state, p)
        taken = port.take(state.opt_state, p)
        shared = shared_of(kind, p)
        unbiased = np.where(shared, sent / (1 - beta**seen), 0.0)
        assert np.allclose(taken.flat, unbiased, rtol=1e-5, atol=1e-9)
        mean = np.random.default_rng(p).normal(size=sent.size).astype(np.float32)
        state = stepped(inner, state, seen, seen + tau)
        now = raw(TASK, LAYOUT, state.opt_state, p)
        others = [raw(TASK, LAYOUT, state.opt_state, q) for q in map(Fragment, range(FRAGMENTS))]
        after = port.put(state.opt_state, p, inner.place_flat(mean, mean.size), taken)
        wanted = now + shared * beta**tau * ((1 - beta**seen) * mean - sent)
        assert np.allclose(raw(TASK, LAYOUT, after, p), wanted, rtol=1e-4, atol=1e-7)
        for q in map(Fragment, range(FRAGMENTS)):
            if q != p:
                assert np.array_equal(raw(TASK, LAYOUT, after, q), others[q])


@pytest.mark.parametrize("kind", first_of(KINDS))
def test_adopting_the_mean_at_once_gives_the_mean_gradients_moment(kind: OptimizerKind) -> None:
    """If tau = 0 and the mean is over all islands at each step, m is that of the mean gradient."""
    inner, port = made(kind)
    first = [stepped(inner, inner.start(TASK.init(0)), 0, 3, seed) for seed in (1, 2, 3)]
    owns = [
        [raw(TASK, LAYOUT, state.opt_state, Fragment(p)) for state in first]
        for p in range(FRAGMENTS)
    ]
    for p in map(Fragment, range(FRAGMENTS)):
        taken = [port.take(state.opt_state, p) for state in first]
        mean = np.mean([np.asarray(each.flat) for each in taken], axis=0)
        first = [
            replace(
                state,
                opt_state=port.put(state.opt_state, p, inner.place_flat(mean, mean.size), each),
            )
            for state, each in zip(first, taken, strict=True)
        ]
    for i, state in enumerate(first):
        for p in map(Fragment, range(FRAGMENTS)):
            found = raw(TASK, LAYOUT, state.opt_state, p)
            wanted = np.where(shared_of(kind, p), np.mean(owns[p], axis=0), owns[p][i])
            assert np.allclose(found, wanted, rtol=1e-4, atol=1e-8)


def test_joining_learner_takes_shared_moments_of_hidden_matrices_only() -> None:
    spec, clock = spec_of("muon"), 40
    inner, port = made("muon")
    rng = np.random.default_rng(0)
    shared: dict[Fragment, Flat] = {
        Fragment(p): rng.normal(size=size).astype(np.float32)
        for p, size in enumerate(LAYOUT.sizes)
        if p != 1  # no moments of this one were handed in
    }
    state = inner.start(TASK.init(0))
    joined = inner.place_moments(port.joined(state.opt_state, shared, clock))
    for p in map(Fragment, range(FRAGMENTS)):
        by_muon, found = decays("muon", p) == spec.momentum, raw(TASK, LAYOUT, joined, p)
        assert by_muon.any()
        assert not found[~by_muon].any()
        wanted = (1 - spec.momentum**clock) * shared[p] if p in shared else np.zeros(found.size)
        assert np.allclose(found[by_muon], np.asarray(wanted)[by_muon], rtol=1e-5)
    assert np.isfinite(
        float(inner.step(InnerState(TASK.init(0), joined), batches(9, 1)[0], clock)[1].loss)
    )


def test_joining_without_shared_moments_changes_nothing() -> None:
    inner, port = made("muon")
    state = inner.start(TASK.init(0)).opt_state
    assert port.joined(state, {}, 7) is state
    assert port.joined(state, {Fragment(0): np.ones(LAYOUT.sizes[0], np.float32)}, 0) is state


# --- moments beside hand-ins -----------------------------------------------------------------


def replica_of(every: int) -> Replica:
    inner, port = made("muon")
    replica = Replica(inner, PORT, "host", MomentSharing(port, every))
    public = {
        Fragment(p): np.asarray(PORT.take(TASK.init(0), Fragment(p))) for p in range(FRAGMENTS)
    }
    replica.begin(TASK.init(0), None, public, {}, 0)
    return replica


def over(base: int, start: int, stop: int) -> HandOver:
    p, said = Fragment(0), ContributionId(LIFE, Fragment(0), start, stop)
    return HandOver(p, said, Track(Version(0, base), start, start), Progress(stop, stop, Lease(0)))


@pytest.mark.parametrize("every", [1, 3])
def test_moments_are_sent_with_every_nth_merge(every: int) -> None:
    replica = replica_of(every)
    encode = ENCODERS["host"]
    uplink = Uplink(LIFE, encode(Wire.F32), LAYOUT, moments=encode(Wire.INT8))
    for base, batch in enumerate(batches(1, 6)):
        replica.step(batch, base)
        snapshot = replica.take(over(base, base, base + 1))
        (facts, sent), wanted = uplink.encode(Fragment(0), snapshot), (base + 1) % every == 0
        assert facts.id.to_step == base + 1
        delta, moments = split(sent)
        assert delta.nbytes == Wire.F32.bytes_of(LAYOUT.sizes[0])
        assert isinstance(sent, WithMoments) == (moments is not None) == wanted
        if moments is not None:
            assert sent.nbytes == delta.nbytes + Wire.INT8.bytes_of(LAYOUT.sizes[0])
            own = raw(TASK, LAYOUT, replica.state.opt_state, Fragment(0))
            own /= 1 - decays("muon", Fragment(0)) ** (base + 1)
            own *= shared_of("muon", Fragment(0))
            off = np.abs(decode(moments, own.size) - own)
            assert (off <= np.abs(own).max() / 100).all()


def test_moments_stay_local_without_a_mean_or_own_contribution() -> None:
    p, replica, (inner, _) = Fragment(0), replica_of(2), made("muon")
    size = LAYOUT.sizes[p]
    flat = np.zeros(size, np.float32)
    mean = inner.place_flat(np.full(size, 7, np.float32), size)

    def adopted(base: int, with_mean: bool) -> bool:
        """Return whether the moments have changed."""
        before = raw(TASK, LAYOUT, replica.state.opt_state, p)
        replica.take(over(base, 0, 1))
        replica.adopt(p, flat, inner.place_flat(flat, flat.size), mean if with_mean else None)
        return not np.array_equal(before, raw(TASK, LAYOUT, replica.state.opt_state, p))

    replica.step(batches(1, 1)[0], 0)
    assert adopted(base=1, with_mean=True)
    assert not adopted(base=1, with_mean=False)  # no island has handed any in
    assert not adopted(base=2, with_mean=True)  # others have handed some in, this one has not
    replica.take(over(1, 0, 1))
    replica.adopt(p, flat, inner.place_flat(flat, flat.size), None)
    before = raw(TASK, LAYOUT, replica.state.opt_state, p)
    replica.adopt(p, flat, inner.place_flat(flat, flat.size), mean)  # they are used up
    assert np.array_equal(before, raw(TASK, LAYOUT, replica.state.opt_state, p))


def test_mean_of_another_version_is_ignored() -> None:
    """The mean may come with the publication, or with differences that were fetched."""
    p, values = Fragment(0), np.ones(4, np.float32)
    sent = WithMoments(values, 2 * values)
    v2, v3, v4, v5 = (Version(0, number) for number in (2, 3, 4, 5))
    newest = (v5, 9 * values)

    def missed(p: Fragment, older: Version, newer: Version) -> Missed:
        return [values, sent] if newer == v4 else newest

    downlink = Downlink({p: (v2, values)}, missed)
    assert downlink.follow(Publication(p, v3, v2, ()), sent) is not None
    assert np.array_equal(real(downlink.take_mean(p, v3)), 2 * values)
    assert downlink.take_mean(p, v3) is None  # it has been taken
    assert downlink.follow(Publication(p, v4, v3, ()), None) is not None
    assert np.array_equal(real(downlink.take_mean(p, v4)), 2 * values)
    assert downlink.follow(Publication(p, Version(0, 6), v5, ()), sent) is not None
    assert downlink.take_mean(p, Version(0, 6)) is None  # the fetch returned v5 as a whole


def real(found: Flat | None) -> Flat:
    assert found is not None
    return found
