"""A report speaks of its own life only."""

from __future__ import annotations

import math

import pytest

from cluster.actors.message_checks import check_report
from coordinator.errors import Malformed
from coordinator.protocol import Adopted, Fragment, Lease, Life, Progress, Report, Version, Vitals
from tests.coordinator.given import life

PROGRESS = Progress(4, 400, Lease(0, 4))


def adopted(who: Life) -> Adopted:
    return Adopted(who, Fragment(0), Version(0, 1), 4, 0, PROGRESS)


def test_an_adoption_of_another_life_is_refused() -> None:
    report, vitals = Report(life("a"), PROGRESS, 1.0), Vitals(math.nan)
    check_report(report, vitals, [adopted(life("a"))], 1)
    for other in (life("b"), life("a", 2)):
        with pytest.raises(Malformed, match="has adopted"):
            check_report(report, vitals, [adopted(other)], 1)
