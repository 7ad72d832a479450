"""The records of the tape: what is written of an event, and what older tapes have."""

from __future__ import annotations

from typing import cast

from coordinator.protocol import Lease, MomentsTaken, Progress, Report
from coordinator.tape import Plain, recall, record
from tests.coordinator.given import life

PLAIN = Report(life("a"), Progress(3, 30, Lease(0)), 0.1)


def test_report_without_moments_is_written_as_before_there_were_any() -> None:
    kind, fields = record(PLAIN)
    assert [*cast("dict[str, Plain]", fields)] == ["life", "progress", "step_s"]
    assert recall(kind, fields) == PLAIN


def test_report_with_moments_comes_back() -> None:
    event = Report(life("a"), Progress(3, 30, Lease(0)), 0.1, MomentsTaken(life("b"), 4096))
    assert recall(*record(event)) == event
