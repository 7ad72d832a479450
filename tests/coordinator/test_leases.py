"""Each window of the corpus is in one learner's hands, and goes back from the right place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.leases import Pool, further, give_back, grant, keep_unread
from coordinator.protocol import Lease

WINDOWS = 4
HELD = (Lease(3, 1), Lease(5), Lease(6))


def returned(covered: Lease | None) -> tuple[Lease, ...]:
    return give_back(Pool(fresh=9), HELD, covered, WINDOWS).returned


def test_fresh_pieces_are_handed_out_in_order() -> None:
    pool, first = grant(Pool())
    pool, second = grant(pool)
    assert (first, second, pool.fresh) == (Lease(0), Lease(1), 2)


def test_what_was_given_back_is_handed_out_first_the_oldest_before_the_others() -> None:
    pool = give_back(Pool(fresh=9, returned=(Lease(4, 2),)), (Lease(2), Lease(7)), None, WINDOWS)
    granted = []
    for _ in range(4):
        pool, lease = grant(pool)
        granted.append(lease)
    assert granted == [Lease(2), Lease(4, 2), Lease(7), Lease(9)]


def test_without_an_admitted_contribution_everything_goes_back() -> None:
    assert returned(None) == HELD


def test_a_piece_goes_back_from_the_cursor_that_is_covered() -> None:
    assert returned(Lease(3, 3)) == (Lease(3, 3), Lease(5), Lease(6))


def test_pieces_before_the_covered_one_are_used_up() -> None:
    assert returned(Lease(5, 2)) == (Lease(5, 2), Lease(6))


def test_a_piece_read_to_its_end_does_not_go_back() -> None:
    assert returned(Lease(5, WINDOWS)) == (Lease(6),)
    assert returned(Lease(6, WINDOWS)) == ()


def test_a_learner_keeps_the_piece_it_reads_and_those_after_it() -> None:
    assert keep_unread(HELD, Lease(5, 1)) == (Lease(5), Lease(6))
    assert keep_unread(HELD, Lease(3, 4)) == HELD
    assert keep_unread(HELD, Lease(8, 1)) == HELD
    assert keep_unread(HELD, None) == HELD


def test_of_two_cursors_the_later_counts_in_whatever_order_they_come() -> None:
    early, later, latest = Lease(3, 2), Lease(3, 4), Lease(5, 1)
    assert further(HELD, None, early) == early
    for one, other in ((early, later), (later, early)):
        assert further(HELD, one, other) == later
    for one, other in ((latest, later), (later, latest)):
        assert further(HELD, one, other) == latest


def test_a_cursor_in_a_piece_that_is_used_up_says_nothing_new() -> None:
    assert further(HELD[1:], Lease(5, 1), Lease(3, 2)) == Lease(5, 1)
    assert further(HELD[1:], None, Lease(3, 2)) is None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3 * WINDOWS)), max_size=12))
def test_no_window_is_read_for_good_by_two(lives: list[tuple[int, int]]) -> None:
    """One life after the other takes a few pieces, reads on for a while, and dies."""
    pool, read = Pool(), []
    for pieces, steps in lives:
        held: list[Lease] = []
        for _ in range(pieces):
            pool, lease = grant(pool)
            held.append(lease)
        windows = [(piece.number, w) for piece in held for w in range(piece.start, WINDOWS)]
        read += windows[:steps]
        last = windows[:steps][-1:]
        covered = Lease(last[0][0], last[0][1] + 1) if last else None
        pool = give_back(pool, held, covered, WINDOWS)
    assert len(read) == len(set(read))
    waiting = {(piece.number, w) for piece in pool.returned for w in range(piece.start, WINDOWS)}
    assert waiting.isdisjoint(read)
    assert waiting | set(read) == {(n, w) for n in range(pool.fresh) for w in range(WINDOWS)}
