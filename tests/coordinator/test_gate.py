"""Who is refused at the gate, and why."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import gate
from coordinator.protocol import Contribution, Fate, Lease, Progress, Version
from tests.coordinator.given import LAYOUT, contribution

CALM = (1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0)


def inspect(c: Contribution, *, current: int = 0, norms: tuple[float, ...] = ()) -> str:
    """The fate and the reason, or `admitted`."""
    refusal = gate.inspect(
        c, fingerprint=LAYOUT, current=Version(0, current), max_staleness=2, norms=norms
    )
    return "admitted" if refusal is None else f"{refusal.fate}: {refusal.why}"


def test_a_contribution_in_order_is_admitted() -> None:
    assert inspect(contribution()) == "admitted"
    assert inspect(contribution(norm=0.0)) == "admitted"


def test_another_layout_is_refused() -> None:
    said = inspect(contribution(fingerprint="other"))
    assert said == "gate: layout other, the run's is layout"


def test_a_base_that_was_never_published_is_refused() -> None:
    said = inspect(contribution(base=Version(0, 4)), current=3)
    assert said == "gate: base v4 is not known, the newest is v3"


def test_a_base_of_a_later_generation_is_refused_and_one_of_an_earlier_is_known() -> None:
    assert inspect(contribution(base=Version(1, 0)), current=3).startswith("gate: base v1.0")
    assert (
        gate.inspect(
            contribution(base=Version(0, 3)),
            fingerprint=LAYOUT,
            current=Version(1, 3),
            max_staleness=2,
            norms=(),
        )
        is None
    )


def test_what_is_too_old_is_stale_and_no_fault_of_the_learner() -> None:
    assert inspect(contribution(base=Version(0, 1)), current=3) == "admitted"
    said = inspect(contribution(base=Version(0, 0)), current=3)
    assert said == "stale: 3 versions old, the limit is 2"


@pytest.mark.parametrize("norm", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(norm: float) -> None:
    assert inspect(contribution(norm=norm)) == "gate: numbers that are not finite"


def test_a_norm_per_step_far_out_of_line_is_refused() -> None:
    said = inspect(contribution(span=(0, 4), norm=4 * 10.1), norms=CALM)
    assert said == "gate: norm per step 10.1, the limit is 10"
    assert inspect(contribution(span=(0, 4), norm=4 * 9.9), norms=CALM) == "admitted"


def test_a_delta_that_spans_more_than_its_interval_has_more_steps_to_its_norm() -> None:
    """As with the syncer's anchor, where a second hand-in counts from the base again."""
    late = contribution(span=(7, 8), since_step=0, norm=8 * 9.9)
    assert inspect(late, norms=CALM) == "admitted"
    assert inspect(contribution(span=(7, 8), norm=8 * 9.9), norms=CALM).startswith("gate: norm")


def test_with_few_norms_known_nothing_can_be_called_an_outlier() -> None:
    assert inspect(contribution(norm=1e9), norms=CALM[1:]) == "admitted"
    assert gate.largest_norm(()) == math.inf


def test_where_norms_spread_widely_more_is_admitted() -> None:
    wide = (0.01, 0.1, 1.0, 10.0, 100.0, 0.1, 10.0, 1.0)
    assert gate.largest_norm(wide) == pytest.approx(10.0**8)


def test_zero_norms_say_nothing_about_the_others() -> None:
    assert gate.largest_norm((0.0,) * 60 + CALM) == gate.largest_norm(CALM)


@given(st.lists(st.floats(1e-6, 1e6), min_size=8, max_size=64))
def test_ten_times_the_median_is_always_admitted(norms: list[float]) -> None:
    middle = math.exp(sum(sorted(map(math.log, norms))[(len(norms) - 1) // 2 :][:1]))
    assert gate.largest_norm(norms) >= 9.99 * middle


def possible(c: Contribution, *, uncovered: int = 400) -> bool:
    return gate.plausible(c, uncovered=uncovered)


def test_counters_that_fit_together_are_possible() -> None:
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
def test_impossible_counters_are_refused(bad: Contribution) -> None:
    assert not possible(bad)


def test_a_refusal_names_the_fate_of_the_tokens() -> None:
    assert gate.Refusal(Fate.STALE, "old").fate is Fate.STALE
