"""The loss that a run was expected to have after so many tokens, with a band around it; pure.

An expectation comes from the points of a curve, or from a law. There is none outside the curve, nor
before the law holds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cluster.config.monitor_tables import LossLaw
from cluster.status import ExpectedStatus

COLUMNS = ("tokens", "loss")
"""The columns that a curve needs."""
BOUNDS = ("low", "high")
"""The columns that a curve may have: the band."""
LAW_FROM = 1.0
"""Tokens per parameter from which a law is used; its fits have no shorter runs."""
PROBLEMS_SHOWN = 5
"""The most problems of one curve that a message lists."""


class ExpectedLoss(NamedTuple):
    """An expected held-out loss and its band, in nats per token."""

    loss: float
    low: float
    high: float


class Expectation(Protocol):
    """A source of expected losses."""

    def at(self, tokens: float) -> ExpectedLoss | None:
        """Return the expected loss after this many tokens; None if nothing is expected there."""
        ...


class ExpectedPoint(NamedTuple):
    """A point of an expected curve."""

    tokens: float
    loss: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ExpectedCurve:
    """A curve through points, linear in the logarithm of tokens between two of them."""

    points: tuple[ExpectedPoint, ...]
    """The points, with increasing tokens above 0."""

    def at(self, tokens: float) -> ExpectedLoss | None:
        """Return the expected loss; None before the first point and after the last one."""
        points = self.points
        if not points[0].tokens <= tokens <= points[-1].tokens:
            return None
        after = bisect_right(points, tokens, key=lambda point: point.tokens)
        left, right = points[after - 1], points[min(after, len(points) - 1)]
        if left.tokens == right.tokens:
            return ExpectedLoss(*left[1:])
        part = math.log(tokens / left.tokens) / math.log(right.tokens / left.tokens)
        return ExpectedLoss(*(a + part * (b - a) for a, b in zip(left[1:], right[1:], strict=True)))


@dataclass(frozen=True, slots=True)
class ExpectedByLaw:
    """The losses of a law for a model of this size."""

    law: LossLaw
    parameters: int
    band: float
    """Half the width of the band, as a share of the loss."""

    def at(self, tokens: float) -> ExpectedLoss | None:
        """Return the expected loss; None below `LAW_FROM` tokens per parameter."""
        if tokens < LAW_FROM * self.parameters:
            return None
        return banded(self.law.loss(self.parameters, tokens), self.band)


def banded(loss: float, band: float) -> ExpectedLoss:
    """Return a loss with a band of this share of it on each side."""
    return ExpectedLoss(loss, loss * (1 - band), loss * (1 + band))


def curve_of(
    rows: Sequence[Mapping[str, str | None]], band: float
) -> tuple[ExpectedCurve | None, list[str]]:
    """Return the curve of the rows of a CSV file, and the problems in them.

    Each row has `tokens` and `loss`, and may have both `low` and `high`; else `band` gives them.
    `tokens` grow from row to row. There is no curve if there is a problem.
    """
    if not rows:
        return None, ["it has no row below its header"]
    present = {name for name in rows[0] if name}
    if missing := [name for name in COLUMNS if name not in present]:
        found = ", ".join(sorted(present)) or "none"
        return None, [f"it has no column {' and no '.join(missing)}; its columns are: {found}"]
    if len(bounds := [name for name in BOUNDS if name in present]) == 1:
        return None, [f"it has the column {bounds[0]} alone; a band needs both low and high"]
    problems: list[str] = []
    points: list[ExpectedPoint] = []
    for number, row in enumerate(rows, 2):  # the header is line 1
        values = {name: _number(row.get(name)) for name in (*COLUMNS, *bounds)}
        if bad := [name for name, value in values.items() if value is None]:
            shown = ", ".join(f"{name} = {row.get(name)!r}" for name in bad)
            problems.append(f"line {number}: {shown} is not a finite number")
            continue
        tokens, loss, *band_values = (value for value in values.values() if value is not None)
        _, low, high = (loss, *band_values) if bounds else banded(loss, band)
        if tokens <= 0:
            problems.append(f"line {number}: tokens = {tokens:g} is not above 0")
        elif points and tokens <= points[-1].tokens:
            before = f"{points[-1].tokens:g}"
            problems.append(f"line {number}: tokens = {tokens:g} after {before}; they must grow")
        elif not low <= loss <= high:
            problems.append(f"line {number}: loss {loss:g} is not between {low:g} and {high:g}")
        else:
            points.append(ExpectedPoint(tokens, loss, low, high))
    if problems:
        more = len(problems) - PROBLEMS_SHOWN
        return None, [*problems[:PROBLEMS_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return ExpectedCurve(tuple(points)), []


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def judged(expectation: Expectation, t: int, tokens: int, loss: float) -> ExpectedStatus | None:
    """Compare an evaluation with the expectation; None if nothing is expected there.

    A loss that is not finite is outside every band.
    """
    if tokens <= 0 or (expected := expectation.at(tokens)) is None:
        return None
    return ExpectedStatus(
        t=t,
        tokens=tokens,
        loss=expected.loss,
        low=expected.low,
        high=expected.high,
        heldout_loss=loss if math.isfinite(loss) else None,
        inside=expected.low <= loss <= expected.high,
    )
