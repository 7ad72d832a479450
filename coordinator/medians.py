"""The median of all numbers but one, from numbers that are sorted once."""

from __future__ import annotations

from collections.abc import Sequence


def median_without(ordered: Sequence[float], i: int) -> float:
    """Return `statistics.median` of the numbers without the one at index `i`, to the last bit.

    `ordered`: at least two numbers in ascending order.
    """
    count = len(ordered) - 1
    middle = count // 2
    upper = ordered[middle + (middle >= i)]
    if count % 2:
        return upper
    below = middle - 1
    return (ordered[below + (below >= i)] + upper) / 2
