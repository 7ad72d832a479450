"""Every trained token has exactly one fate on every fragment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coordinator import ledger
from coordinator.errors import BrokenInvariant
from coordinator.ledger import Ledger, Row, Totals
from coordinator.protocol import Contribution, Fate, Fragment, Life
from tests.coordinator.given import contribution, life

A = life("a")
F0 = Fragment(0)


def one_life(tokens: int = 1000, fragments: int = 1) -> Ledger:
    return ledger.trained(ledger.open_account(ledger.empty(fragments), A), A, tokens)


def test_tokens_are_outstanding_until_merged() -> None:
    book = one_life(tokens=400)
    c = contribution(A, span=(0, 4))
    assert book.outstanding(F0) == 400
    book = ledger.hold(book, c)
    assert (book.outstanding(F0), book.rows[0].held) == (400, 400)
    book = ledger.merge(book, c)
    assert (book.outstanding(F0), book.rows[0].held, book.rows[0].merged) == (0, 0, 400)


def test_step_may_be_merged_for_one_fragment_and_overwritten_for_another() -> None:
    book = one_life(tokens=400, fragments=2)
    c = contribution(A, fragment=0, span=(0, 4))
    book = ledger.merge(ledger.hold(book, c), c)
    book = ledger.overwrite(book, A, Fragment(1), (0, 4), 400)
    assert book.rows == (Row(merged=400), Row(discarded={Fate.OVERWRITTEN: 400}))
    ledger.validate(book)


def test_refused_and_dropped_tokens_are_discarded_with_the_reason() -> None:
    book = ledger.refuse(one_life(), contribution(A, span=(0, 4)), Fate.GATE)
    waiting = contribution(A, span=(4, 6))
    book = ledger.drop(ledger.hold(book, waiting), waiting, Fate.STALE)
    assert book.rows[0].discarded == {Fate.GATE: 400, Fate.STALE: 200}
    assert (book.rows[0].held, book.rows[0].all_discarded) == (0, 600)
    ledger.validate(book)


def test_closing_a_life_loses_only_tokens_not_handed_in() -> None:
    c = contribution(A, span=(0, 4))
    book = ledger.close_account(ledger.hold(one_life(tokens=1000), c), A)
    assert (book.rows[0].lost, book.rows[0].held, book.outstanding(F0)) == (600, 400, 400)
    assert book.accounts == {}
    ledger.validate(book)


def test_older_token_count_changes_nothing() -> None:
    book = one_life(tokens=500)
    assert ledger.trained(book, A, 400) == book
    assert ledger.trained(book, A, 500) == book
    assert ledger.trained(book, A, 700).trained == 700


@pytest.mark.parametrize("span", [(0, 4), (3, 5), (1, 2), (0, 9), (3, 4)])
def test_step_is_never_counted_twice(span: tuple[int, int]) -> None:
    book = ledger.hold(one_life(), contribution(A, span=(0, 4)))
    assert ledger.overlaps(book, A, F0, span)
    with pytest.raises(BrokenInvariant, match="twice"):
        ledger.hold(book, contribution(A, span=span))


def test_adjacent_intervals_are_joined_without_overlap() -> None:
    book = one_life()
    for span in ((4, 6), (0, 2), (2, 4), (8, 9)):
        assert not ledger.overlaps(book, A, F0, span)
        book = ledger.hold(book, contribution(A, span=span))
    assert book.accounts[A].spans[0] == ((0, 6), (8, 9))
    assert ledger.uncovered(book, A, F0) == 300


def test_adoption_that_carries_its_steps_overwrites_nothing() -> None:
    book = one_life()
    assert ledger.overwrite(book, A, F0, (5, 5), 0) == book


@pytest.mark.parametrize(
    "row",
    [Row(merged=-1), Row(held=1), Row(lost=1), Row(lost=-1), Row(discarded={Fate.GATE: 1})],
)
def test_inconsistent_row_breaks_an_invariant(row: Row) -> None:
    ledger.validate(one_life())
    with pytest.raises(BrokenInvariant, match="fragment 0"):
        ledger.validate(replace(one_life(), rows=(row,)))


def test_covering_more_tokens_than_trained_breaks_an_invariant() -> None:
    book = ledger.overwrite(one_life(tokens=100), A, F0, (0, 2), 200)
    with pytest.raises(BrokenInvariant, match="negative tokens"):
        ledger.validate(book)


def test_totals_are_row_means_weighted_by_parameters() -> None:
    book = one_life(tokens=400, fragments=2)
    c = contribution(A, fragment=0, span=(0, 4))
    book = ledger.merge(ledger.hold(book, c), c)
    assert ledger.totals(book, (300, 100)) == Totals(400, 300, 0, 0, 100)


@given(
    st.lists(st.tuples(*[st.integers(0, 10**15)] * 3), min_size=1, max_size=8),
    st.integers(0, 10**15),
    st.data(),
)
def test_totals_always_add_up(
    fates: list[tuple[int, int, int]], more: int, data: st.DataObject
) -> None:
    sizes = data.draw(
        st.lists(st.integers(1, 10**9), min_size=len(fates), max_size=len(fates)), label="sizes"
    )
    rows = tuple(
        Row(merged=merged, lost=lost, discarded={Fate.STALE: old}) for merged, lost, old in fates
    )
    trained = max(map(sum, fates)) + more
    total = ledger.totals(Ledger(trained, rows, {}), sizes)
    assert total.merged + total.discarded + total.lost + total.outstanding == trained
    exact = sum(size * row.merged for size, row in zip(sizes, rows, strict=True))
    assert abs(total.merged * sum(sizes) - exact) < sum(sizes)
    assert min(total.merged, total.discarded, total.lost, total.outstanding) >= 0


# --- a whole life of bookkeeping ------------------------------------------------------------------


@dataclass
class Twin:
    """One life's naive record: the fate of every single step of 100 tokens."""

    steps: int = 0
    settled: int = 0
    fates: dict[int, str] = field(default_factory=dict[int, str])


class Bookkeeping(RuleBasedStateMachine):
    """A state machine for one fragment, beside naive twins that record each step.

    Lives train, hand in, are overwritten and die.
    """

    def __init__(self) -> None:
        super().__init__()
        self.book = ledger.empty(1)
        self.twins: dict[Life, Twin] = {}
        self.alive: list[Life] = []
        self.held: list[Contribution] = []

    @rule()
    def is_born(self) -> None:
        who = life("a", 1 + len(self.twins))
        self.book = ledger.open_account(self.book, who)
        self.twins[who] = Twin()
        self.alive.append(who)

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 9), steps=st.integers(1, 5))
    def trains(self, which: int, steps: int) -> None:
        who = self.alive[which % len(self.alive)]
        self.twins[who].steps += steps
        self.book = ledger.trained(self.book, who, 100 * self.twins[who].steps)

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 9), admitted=st.booleans())
    def hands_in(self, which: int, admitted: bool) -> None:
        who, span = self._next_span(which)
        if span[0] == span[1]:
            return
        c = contribution(who, span=span)
        if admitted:
            self.book = ledger.hold(self.book, c)
            self.held.append(c)
        else:
            self.book = ledger.refuse(self.book, c, Fate.GATE)
        self._write(who, span, "held" if admitted else "discarded")

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 9))
    def is_overwritten(self, which: int) -> None:
        who, span = self._next_span(which)
        self.book = ledger.overwrite(self.book, who, F0, span, 100 * (span[1] - span[0]))
        self._write(who, span, "discarded")

    @precondition(lambda self: self.held)
    @rule(merged=st.booleans())
    def meets_its_fate(self, merged: bool) -> None:
        c = self.held.pop(0)
        if merged:
            self.book = ledger.merge(self.book, c)
        else:
            self.book = ledger.drop(self.book, c, Fate.STALE)
        self._write(c.id.life, (c.id.from_step, c.id.to_step), "merged" if merged else "discarded")

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 9))
    def dies(self, which: int) -> None:
        who = self.alive.pop(which % len(self.alive))
        self.book = ledger.close_account(self.book, who)
        twin = self.twins[who]
        self._write(who, (twin.settled, twin.steps), "lost")

    def _next_span(self, which: int) -> tuple[Life, tuple[int, int]]:
        """Return a life and its steps since its last hand-in or adoption."""
        who = self.alive[which % len(self.alive)]
        twin = self.twins[who]
        span = (twin.settled, twin.steps)
        twin.settled = twin.steps
        return who, span

    def _write(self, who: Life, span: tuple[int, int], fate: str) -> None:
        self.twins[who].fates |= dict.fromkeys(range(*span), fate)

    @invariant()
    def adds_up_step_by_step(self) -> None:
        ledger.validate(self.book)
        fates = [fate for twin in self.twins.values() for fate in twin.fates.values()]
        row = self.book.rows[0]
        assert self.book.trained == 100 * sum(twin.steps for twin in self.twins.values())
        assert row.merged == 100 * fates.count("merged")
        assert row.held == 100 * fates.count("held")
        assert row.all_discarded == 100 * fates.count("discarded")
        assert row.lost == 100 * fates.count("lost")


TestBookkeeping = Bookkeeping.TestCase
