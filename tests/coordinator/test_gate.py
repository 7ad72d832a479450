"""The gate refuses contributions, and gives the reason."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import gate
from coordinator.frozen import replace
from coordinator.norms import NONE, Norms, Sample, admit, forget, limit
from coordinator.protocol import Cause, Contribution, Fate, Lease, Progress, Version
from tests.coordinator.given import LAYOUT, contribution


def over(steps: int, *each: float) -> Norms:
    """Return the norms of deltas over `steps` steps; each given norm is per step."""
    return Norms(tuple(Sample(steps * norm, steps) for norm in each))


CALM = (1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0)


def inspect(c: Contribution, *, current: int = 0, known: Norms = NONE) -> str:
    """Return the fate and the reason, or `admitted`."""
    refusal = gate.inspect(
        c,
        fingerprint=LAYOUT,
        current=Version(0, current),
        max_staleness=2,
        norms=known,
        moments=NONE,
    )
    return "admitted" if refusal is None else f"{refusal.fate}: {refusal.why}"


def test_admits_valid_contribution() -> None:
    assert inspect(contribution()) == "admitted"
    assert inspect(contribution(norm=0.0)) == "admitted"


def test_refuses_another_layout() -> None:
    said = inspect(contribution(fingerprint="other"))
    assert said == "gate: layout other, the run's is layout"


def test_refuses_base_that_was_never_published() -> None:
    said = inspect(contribution(base=Version(0, 4)), current=3)
    assert said == "gate: base v4 is not known, the newest is v3"


def test_refuses_base_of_later_generation_and_accepts_earlier_one() -> None:
    assert inspect(contribution(base=Version(1, 0)), current=3).startswith("gate: base v1.0")
    assert (
        gate.inspect(
            contribution(base=Version(0, 3)),
            fingerprint=LAYOUT,
            current=Version(1, 3),
            max_staleness=2,
            norms=NONE,
            moments=NONE,
        )
        is None
    )


def test_contribution_beyond_max_staleness_is_stale() -> None:
    assert inspect(contribution(base=Version(0, 1)), current=3) == "admitted"
    said = inspect(contribution(base=Version(0, 0)), current=3)
    assert said == "stale: 3 versions old, the limit is 2"


@pytest.mark.parametrize("norm", [math.nan, math.inf, -math.inf])
def test_refuses_non_finite_norm(norm: float) -> None:
    assert inspect(contribution(norm=norm)) == "gate: numbers that are not finite"


def test_refuses_payload_of_another_wire() -> None:
    said = inspect(replace(contribution(norm=math.nan), flaw="f32 bytes, the run's wire is bf16"))
    assert said == "gate: f32 bytes, the run's wire is bf16"


def test_refuses_outlier_norm() -> None:
    known = over(4, *CALM)
    said = inspect(contribution(span=(0, 4), norm=4 * 10.1), known=known)
    assert said == "gate: norm 40.4 over 4 steps, the limit is 40"
    assert inspect(contribution(span=(0, 4), norm=4 * 9.9), known=known) == "admitted"


def test_norm_limit_counts_all_steps_that_a_delta_spans() -> None:
    """An example is the syncer's anchor, where a second hand-in counts from the base again."""
    known = over(1, *CALM)
    late = contribution(span=(7, 8), since_step=0, norm=8 * 9.9)
    assert inspect(late, known=known) == "admitted"
    assert inspect(contribution(span=(7, 8), norm=8 * 9.9), known=known).startswith("gate: norm")


def test_norm_limit_for_one_step_allows_for_noisy_steps() -> None:
    """The norm of steps that are all noise grows with the square root of their number.

    One such step is ten times as long as a hundredth of a hundred steps.
    """
    walks = Norms((Sample(10.0, 100),) * 8)  # steps of norm 1 in random directions
    assert inspect(contribution(span=(0, 1), norm=1.0), known=walks) == "admitted"
    assert inspect(contribution(span=(0, 1), norm=9.9), known=walks) == "admitted"
    assert inspect(contribution(span=(0, 1), norm=10.1), known=walks).startswith("gate: norm")
    steps = Norms((Sample(1.0, 1),) * 8)
    assert inspect(contribution(span=(0, 100), norm=100.0), known=steps) == "admitted"
    assert inspect(contribution(span=(0, 100), norm=1001.0), known=steps).startswith("gate: norm")


def test_admits_any_norm_while_few_norms_are_known() -> None:
    assert inspect(contribution(norm=1e9), known=over(1, *CALM[1:])) == "admitted"
    assert limit(NONE, 1) == math.inf


def test_norm_limit_grows_with_the_spread_of_norms() -> None:
    wide = (0.01, 0.1, 1.0, 10.0, 100.0, 0.1, 10.0, 1.0)
    assert limit(over(1, *wide), 1) == pytest.approx(10.0**8)


def test_norm_limit_ignores_zero_norms() -> None:
    assert limit(over(1, *(0.0,) * 60, *CALM), 1) == limit(over(1, *CALM), 1)


@given(st.lists(st.floats(1e-6, 1e6), min_size=8, max_size=64))
def test_ten_times_the_median_is_always_admitted(each: list[float]) -> None:
    middle = math.exp(sum(sorted(map(math.log, each))[(len(each) - 1) // 2 :][:1]))
    assert limit(over(1, *each), 1) >= 9.99 * middle


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000))
def test_norm_limit_never_falls_with_more_steps(known: int, fewer: int, more: int) -> None:
    fewer, more = sorted((fewer, more))
    calm = over(known, *CALM)
    assert limit(calm, fewer) <= limit(calm, more) * (1 + 1e-12)


def test_forgotten_norms_bound_new_ones_until_eight_are_known() -> None:
    changed = forget(over(1, *CALM))
    assert limit(changed, 1) == pytest.approx(100.0)
    assert limit(forget(changed), 1) == pytest.approx(100.0), "not to fewer than were known"
    for _ in range(7):
        changed = admit(changed, 50.0, 1)
    assert limit(changed, 1) == pytest.approx(100.0)
    assert limit(admit(changed, 50.0, 1), 1) == pytest.approx(500.0)


def possible(c: Contribution, *, uncovered: int = 400) -> bool:
    return gate.plausible(c, uncovered=uncovered)


def test_consistent_counters_are_plausible() -> None:
    assert possible(contribution(span=(0, 4)))
    assert possible(contribution(span=(2, 4), tokens=400))


@pytest.mark.parametrize(
    "bad",
    [
        contribution(span=(4, 4), tokens=1),
        contribution(span=(5, 4), tokens=1),
        contribution(span=(-1, 4)),
        contribution(span=(2, 4), since_step=3),
        contribution(span=(2, 4), since_step=-1),
        contribution(span=(0, 4), tokens=0),
        contribution(span=(0, 4), tokens=-5),
        contribution(span=(0, 4), tokens=401),
        contribution(span=(0, 4), progress=Progress(5, 500, Lease(0, 5))),
        contribution(span=(0, 4), tokens=300, progress=Progress(4, 200, Lease(0, 4))),
    ],
    ids=[
        "no step",
        "backwards",
        "before the first step",
        "a delta that begins within its interval",
        "a delta from before the first step",
        "no token",
        "fewer than none",
        "more tokens than are open",
        "not of this boundary",
        "more tokens than were trained",
    ],
)
def test_impossible_counters_are_not_plausible(bad: Contribution) -> None:
    assert not possible(bad)


def test_refusal_carries_the_fate_of_the_tokens() -> None:
    assert gate.Refusal(Fate.STALE, Cause.STALE, "old").fate is Fate.STALE
