"""Sums of floats whose bits do not depend on the version of Python."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable


def plain_sum(values: Iterable[float]) -> float:
    """Return the sum of numbers, added from left to right.

    Python's `sum` gives other last bits from version 3.12 on, and the tape of a run must replay to
    the same bits on every version.
    """
    return functools.reduce(operator.add, values, 0.0)
