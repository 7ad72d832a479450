"""Each corpus window has one holder, and a lease is returned from its first unread window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.leases import Pool, further, give_back, grant, keep_unread
from coordinator.protocol import Lease

WINDOWS = 4
HELD = (Lease(3, 1), Lease(5), Lease(6))


def returned(covered: Lease | None) -> tuple[Lease, ...]:
    return give_back(Pool(fresh=9), HELD, covered, WINDOWS).returned


def test_grants_fresh_leases_in_order() -> None:
    pool, first = grant(Pool())
    pool, second = grant(pool)
    assert (first, second, pool.fresh) == (Lease(0), Lease(1), 2)


def test_grants_returned_leases_first_and_oldest_first() -> None:
    pool = give_back(Pool(fresh=9, returned=(Lease(4, 2),)), (Lease(2), Lease(7)), None, WINDOWS)
    granted = []
    for _ in range(4):
        pool, lease = grant(pool)
        granted.append(lease)
    assert granted == [Lease(2), Lease(4, 2), Lease(7), Lease(9)]


def test_without_admitted_contribution_all_leases_are_returned() -> None:
    assert returned(None) == HELD


def test_lease_is_returned_from_the_covered_cursor() -> None:
    assert returned(Lease(3, 3)) == (Lease(3, 3), Lease(5), Lease(6))


def test_leases_before_the_covered_one_are_used_up() -> None:
    assert returned(Lease(5, 2)) == (Lease(5, 2), Lease(6))


def test_fully_read_lease_is_not_returned() -> None:
    assert returned(Lease(5, WINDOWS)) == (Lease(6),)
    assert returned(Lease(6, WINDOWS)) == ()


def test_learner_keeps_the_lease_it_reads_and_later_ones() -> None:
    assert keep_unread(HELD, Lease(5, 1)) == (Lease(5), Lease(6))
    assert keep_unread(HELD, Lease(3, 4)) == HELD
    assert keep_unread(HELD, Lease(8, 1)) == HELD
    assert keep_unread(HELD, None) == HELD


def test_later_of_two_cursors_wins_in_any_order() -> None:
    early, later, latest = Lease(3, 2), Lease(3, 4), Lease(5, 1)
    assert further(HELD, None, early) == early
    for one, other in ((early, later), (later, early)):
        assert further(HELD, one, other) == later
    for one, other in ((latest, later), (later, latest)):
        assert further(HELD, one, other) == latest


def test_cursor_in_a_used_up_lease_is_ignored() -> None:
    assert further(HELD[1:], Lease(5, 1), Lease(3, 2)) == Lease(5, 1)
    assert further(HELD[1:], None, Lease(3, 2)) is None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3 * WINDOWS)), max_size=12))
def test_no_window_is_read_twice(lives: list[tuple[int, int]]) -> None:
    """The lives follow each other: each takes a few leases, reads for a while, and dies."""
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
