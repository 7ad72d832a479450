"""The choice of H and P for `sync.every = "auto"`: its bounds, its direction, and its refusals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.interval import (
    LADDER,
    MOST_USE,
    ROUND_SHARE,
    SHORT,
    SHORT_ROUND,
    WAIT_SHARE,
    Bounds,
    HubLink,
    Interval,
    ModelBytes,
    choose,
    load,
)

INT4, BF16 = 17 / 32, 2.0


def link(gbit_s: float, rtt_ms: float = 80.0, islands: float = 4) -> HubLink:
    return HubLink("the hub's link", 1e9 * gbit_s, 1e9 * gbit_s, rtt_ms / 1000, islands)


def model(parameters: float, wire: float = INT4) -> ModelBytes:
    return ModelBytes(parameters, wire, wire)


def seconds_of_bytes(given_model: ModelBytes, over: HubLink) -> float:
    """Return the seconds of one period's bytes in the busier direction, by hand."""
    up = given_model.parameters * given_model.up * 8 * over.islands / over.up_bit_s
    down = given_model.parameters * given_model.down * 8 * over.islands / over.down_bit_s
    return max(up, down)


links = st.builds(
    HubLink,
    st.just("a link"),
    st.floats(1e6, 1e12),
    st.floats(1e6, 1e12),
    st.floats(1e-5, 1.0),
    st.floats(0.25, 64),
)
models = st.builds(ModelBytes, st.floats(1e5, 1e12), st.floats(0.2, 8), st.floats(0.2, 8))
steps = st.floats(1e-3, 60)
bounds = st.builds(
    lambda overlap, least, more: Bounds(overlap, least, least + more),
    st.none() | st.integers(0, 12),
    st.integers(1, 8),
    st.integers(0, 24),
)


@pytest.mark.parametrize(
    ("gbit_s", "rtt_ms", "step_s", "islands", "parameters", "wire", "every", "fragments"),
    [
        (0.2, 80.0, 0.2, 4, 48e6, INT4, 32, 32),
        (0.2, 80.0, 0.2, 3, 48e6, INT4, 24, 24),  # the head's island is at the hub
        (2.0, 80.0, 5.0, 3, 12e9, INT4, 24, 24),  # the same bytes per second of computing
        (5.0, 80.0, 2.0, 3, 12e9, INT4, 24, 24),
        (0.2, 80.0, 0.2, 3, 48e6, BF16, 96, 32),
        (10.0, 1.0, 0.2, 4, 48e6, INT4, 8, 8),
        (100.0, 0.1, 2.0, 4, 48e6, INT4, 1, 1),
    ],
)
def test_choices_for_known_points(
    gbit_s: float,
    rtt_ms: float,
    step_s: float,
    islands: int,
    parameters: float,
    wire: float,
    every: int,
    fragments: int,
) -> None:
    made = choose(model(parameters, wire), [link(gbit_s, rtt_ms, islands)], step_s)
    assert (made.every, made.fragments, made.fits) == (every, fragments, True)
    assert made.busiest.use == pytest.approx(
        seconds_of_bytes(model(parameters, wire), link(gbit_s, rtt_ms, islands)) / (every * step_s)
    )


@given(models, st.lists(links, min_size=1, max_size=4), steps, bounds)
def test_choice_keeps_every_limit_or_says_that_nothing_works(
    each: ModelBytes, over: list[HubLink], step_s: float, limits: Bounds
) -> None:
    """Recompute use and rounds by hand: the choice may not trust its own sums."""
    made = choose(each, over, step_s, limits)
    assert made.every in (*SHORT, *LADDER)
    assert limits.least_fragments <= made.fragments <= min(made.every, limits.most_fragments)
    uses = [seconds_of_bytes(each, one) / (made.every * step_s) for one in over]
    rounds_s = [
        each.parameters * 8 * one.islands / made.fragments
        * (each.up / one.up_bit_s + each.down / one.down_bit_s)
        + 8 * one.rtt_s
        for one in over
    ]  # fmt: skip
    assert made.busiest.use == pytest.approx(max(uses))
    if not made.fits:
        assert made.every == LADDER[-1], "a refusal has tried everything"
        assert made.why.strip()
        return
    slack = 1 + 1e-9
    assert max(uses) <= MOST_USE * slack
    period_s = made.every * step_s
    allowed_s = ROUND_SHARE * period_s
    if limits.overlap is not None:
        assert made.every > limits.overlap
        allowed_s = limits.overlap * step_s or WAIT_SHARE * period_s / made.fragments
    assert max(rounds_s) <= allowed_s * slack
    if made.every < LADDER[0]:
        assert max(rounds_s) <= SHORT_ROUND * step_s * slack


@given(models, st.lists(links, min_size=1, max_size=4), steps, bounds, st.floats(1, 1000))
def test_more_bandwidth_never_lengthens_the_interval(
    each: ModelBytes, over: list[HubLink], step_s: float, limits: Bounds, times: float
) -> None:
    wider = [
        HubLink(one.name, times * one.up_bit_s, times * one.down_bit_s, one.rtt_s, one.islands)
        for one in over
    ]
    slow, fast = choose(each, over, step_s, limits), choose(each, wider, step_s, limits)
    assert fast.every <= slow.every
    assert fast.fits or not slow.fits


@given(models, st.lists(links, min_size=1, max_size=4), steps)
def test_shorter_interval_would_break_a_limit(
    each: ModelBytes, over: list[HubLink], step_s: float
) -> None:
    """The choice is not merely safe: the next shorter H of the ladder does not work."""
    made = choose(each, over, step_s)
    shorter = [h for h in LADDER if h < made.every]
    if not shorter or not made.fits:
        return
    every, most = shorter[-1], min(shorter[-1], 32)
    loads = [load(each, one, step_s, every=every, fragments=most) for one in over]
    assert (
        max(one.use for one in loads) > MOST_USE
        or max(one.round_s for one in loads) > ROUND_SHARE * every * step_s
    )


@given(models, links, steps)
def test_only_short_rounds_allow_less_than_eight(
    each: ModelBytes, over: HubLink, step_s: float
) -> None:
    if 8 * over.rtt_s >= SHORT_ROUND * step_s:
        assert choose(each, [over], step_s).every >= LADDER[0]


def test_worst_of_several_links_decides_and_is_named() -> None:
    wide, thin = link(10), HubLink("the link to us", 2e8, 2e8, 0.08, 3)
    made = choose(model(48e6), [wide, thin], 0.2)
    assert made.every == choose(model(48e6), [thin], 0.2).every == 24
    assert made.busiest.link is thin
    assert "the link to us (0.2 Gbit/s, 80 ms) is used to 64%" in made.why


def test_shards_behind_a_link_send_versions_and_receive_contributions() -> None:
    """Contributions of 1 byte and versions of 2 bytes a parameter, of a million parameters."""
    unequal = ModelBytes(1e6, 1.0, 2.0)
    own, shards = (HubLink("a", 1e8, 1e8, 0.0, *counts) for counts in ((3, 0), (0, 3)))
    both = HubLink("a", 1e8, 1e8, 0.0, 3, 3)
    loads = [load(unequal, each, 1.0, every=8, fragments=8) for each in (own, shards, both)]
    assert [each.needs_bit_s for each in loads] == [6e6, 6e6, 9e6]
    assert loads[0].round_s == loads[1].round_s == loads[2].round_s / 2
    slow_up = HubLink("up", 1e6, 1e12, 0.0, 0, 3)
    assert load(unequal, slow_up, 1.0, every=8, fragments=8).needs_bit_s == 6e6, "versions"


def test_slow_direction_alone_decides() -> None:
    slow_up = HubLink("up", 2e8, 1e10, 0.08, 3)
    slow_down = HubLink("down", 1e10, 2e8, 0.08, 3)
    assert choose(model(48e6), [slow_up], 0.2).every == 24
    assert choose(model(48e6), [slow_down], 0.2).every == 24


def test_fragments_are_few_if_round_trips_would_dominate() -> None:
    """500 ms and 10 steps of H: many tiny fragments would only add round trips."""
    far: Interval = choose(model(48e6), [link(1, rtt_ms=500, islands=3)], 0.02)
    assert far.fits
    assert far.fragments < 8
    near = choose(model(48e6), [link(0.2, rtt_ms=1, islands=3)], 0.2)
    assert near.fragments == near.every


def test_refusal_names_what_the_link_needs_and_has() -> None:
    made = choose(model(48e6), [link(0.001)], 0.2)
    assert not made.fits
    needs = 48e6 * INT4 * 8 * 4 / (512 * 0.2) / MOST_USE / 1e9
    assert f"needs {needs:.3g} Gbit/s" in made.why
    assert "(0.001 Gbit/s, 80 ms)" in made.why
    assert math.isclose(made.busiest.use, needs * MOST_USE / 0.001)


def test_refusal_of_a_fixed_overlap_names_the_round() -> None:
    made = choose(model(48e6), [link(0.2, islands=3)], 0.2, Bounds(overlap=2))
    assert not made.fits
    assert "must end within 0.4 s" in made.why
