"""Signals: what a person presses is not lost, whatever was going on when it was pressed."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from cluster.launch.interrupts import Interrupts


@pytest.fixture
def interrupts():
    """Signals go to these for the time of a test."""
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as listening:
        yield listening
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_asks_and_the_second_ends_at_once(interrupts: Interrupts) -> None:
    signal.raise_signal(signal.SIGINT)
    assert interrupts.asked == "Ctrl-C"
    interrupts.check()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)  # nothing stops the cleaning up


def test_a_second_ctrl_c_that_was_swallowed_is_not_lost(interrupts: Interrupts) -> None:
    signal.raise_signal(signal.SIGINT)
    with suppress(KeyboardInterrupt):  # as Python does in a finalizer, and Ray in a callback
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupts.check()
