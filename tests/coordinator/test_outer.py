"""The outer step matches optax's SGD with Nesterov momentum, in place."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coordinator.outer import Turn, rate, step
from tests.given import outer_rule

STEPS = 6
SIZE = 31


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("eta", "mu"), [(1.0, 0.5), (0.7, 0.9), (1.0, 0.0), (0.3, 0.99)])
def test_outer_step_matches_optax_over_several_steps(eta: float, mu: float, nesterov: bool) -> None:
    chance = np.random.default_rng(3)
    master = chance.normal(size=SIZE).astype(np.float32)
    momentum = np.zeros(SIZE, np.float32)
    optimizer = optax.sgd(eta, momentum=mu, nesterov=nesterov)
    theta = jnp.asarray(master.copy())
    state = optimizer.init(theta)
    for _ in range(STEPS):
        delta = chance.normal(size=SIZE).astype(np.float32)
        updates, state = optimizer.update(jnp.asarray(-delta), state, theta)
        theta = optax.apply_updates(theta, updates)
        step(outer_rule(eta, mu, nesterov), master, momentum, delta)
        np.testing.assert_allclose(master, np.asarray(theta), rtol=2e-6, atol=2e-6)


def test_without_momentum_the_merged_delta_is_added_unchanged() -> None:
    master, momentum = np.array([1, 2], np.float32), np.zeros(2, np.float32)
    step(outer_rule(1.0, 0.0), master, momentum, np.array([0.5, -0.25], np.float32))
    np.testing.assert_array_equal(master, [1.5, 1.75])


def test_first_nesterov_step_is_one_plus_mu_times_as_long() -> None:
    master, momentum = np.zeros(1, np.float32), np.zeros(1, np.float32)
    step(outer_rule(1.0, 0.5), master, momentum, np.ones(1, np.float32))
    np.testing.assert_array_equal(master, [1.5])


def test_buffers_are_updated_in_place_and_stay_f32() -> None:
    master, momentum = np.zeros(3, np.float32), np.zeros(3, np.float32)
    places = master.ctypes.data, momentum.ctypes.data
    step(outer_rule(), master, momentum, np.ones(3, np.float32))
    assert (master.ctypes.data, momentum.ctypes.data) == places
    np.testing.assert_array_equal(momentum, [-1, -1, -1])
    assert master.dtype == momentum.dtype == np.float32


def turn_of(delta: np.ndarray, momentum: np.ndarray) -> Turn:
    d, b = delta.astype(float), momentum.astype(float)
    return Turn(float(d @ d), float(d @ b), float(b @ b))


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("mu", [0.0, 0.5, 0.9])
def test_as_long_rule_keeps_the_length_of_the_merged_delta(mu: float, nesterov: bool) -> None:
    chance = np.random.default_rng()
    master, momentum = chance.normal(size=SIZE).astype("f4"), np.zeros(SIZE, "f4")
    common, rule = chance.normal(size=SIZE), outer_rule(1.0, mu, nesterov, as_long=True)
    for _ in range(STEPS):
        delta = (common + chance.normal(size=SIZE)).astype("f4")
        before, eta = master.copy(), rate(rule, turn_of(delta, momentum))
        step(outer_rule(eta, mu, nesterov), master, momentum, delta)
        assert np.linalg.norm(master - before) == pytest.approx(np.linalg.norm(delta), rel=1e-3)


def test_as_long_rule_without_momentum_has_rate_one() -> None:
    delta = np.ones(SIZE)
    for former in (np.zeros(SIZE), -delta, delta):
        assert rate(outer_rule(as_long=True), turn_of(delta, former)) == pytest.approx(1.0)


def test_cancelled_step_is_not_lengthened() -> None:
    """The delta cancels exactly what the momentum would add, so only rounding errors are left."""
    delta = np.ones(SIZE)
    assert rate(outer_rule(1.0, 0.5, False, as_long=True), turn_of(delta, 2 * delta)) == 1.0
    assert rate(outer_rule(1.0, 0.5, as_long=True), turn_of(delta, 6 * delta)) == 1 / 1.5
    assert rate(outer_rule(1.0, 0.5, as_long=True), Turn(0.0, 0.0, 0.0)) == 1 / 1.5
    assert rate(outer_rule(1.0, 0.5, as_long=True), Turn(np.nan, np.nan, np.nan)) == 1 / 1.5


def test_fixed_rate_is_used() -> None:
    assert rate(outer_rule(0.7, 0.9), turn_of(np.ones(SIZE), -np.ones(SIZE))) == 0.7


def test_cosine_is_to_the_direction_of_the_momentum_step() -> None:
    delta = np.ones(SIZE)
    assert turn_of(delta, -3 * delta).cosine == pytest.approx(1.0), "momentum is of gradients"
    assert turn_of(delta, delta).cosine == pytest.approx(-1.0)
    assert turn_of(delta, 0 * delta).cosine is None
    assert Turn(np.inf, 1.0, 1.0).cosine is None
