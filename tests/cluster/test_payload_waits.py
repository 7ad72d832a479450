"""Tests of the bounded waits of an island for payloads."""

from __future__ import annotations

import math
from contextlib import ExitStack

from cluster.actors.island.payload_waits import LAST_S, PayloadWaits
from coordinator.protocol import Fragment

A, B, C, D = map(Fragment, range(4))


class Clock:
    """A clock that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_last_thread_waits_shortly_in_a_burst_and_not_at_all_on_a_full_link() -> None:
    """A transfer that is given up is sent once more, which a full link cannot carry."""
    clock = Clock()
    waits = PayloadWaits(4, clock)
    with ExitStack() as others:
        assert [others.enter_context(waits.of(each)) for each in (A, B, C)] == [math.inf] * 3
        with waits.of(D) as longest_s:
            assert longest_s == LAST_S
        with waits.of(A) as longest_s:
            assert longest_s == 0.0, "an older version of the fragment is on its way"
        clock.now_s += LAST_S
        for _ in range(2):
            with waits.of(D) as longest_s:
                assert longest_s == 0.0
    with waits.of(A) as longest_s:
        assert longest_s == math.inf, "all waits are over"
