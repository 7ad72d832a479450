"""The checks of a user's codec before anything starts, on random values, tails and zeros."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from coordinator.errors import CorruptPayload, UserMistake
from islands.own_wire import OwnWire, length

SIZES = (1, 2, 31, 33, 1000)
"""Numbers of elements that every codec is tried on, beside that of a fragment."""
TRIED = 1 << 18
"""The most elements on which a codec is tried: some milliseconds of work."""


def wire_problems(wire: OwnWire, sizes: Sequence[int]) -> list[str]:
    """Return why this codec cannot be the wire of fragments of these sizes; empty if it can."""
    tried = sorted({*SIZES, min(TRIED, min(sizes, default=1))})
    try:
        for size in tried:
            if problem := next(_of_size(wire, size), None):
                return [f"{wire.setting}: {problem}"]
        return []
    except (UserMistake, CorruptPayload) as error:
        return [str(error)]


def _of_size(wire: OwnWire, size: int) -> Iterator[str]:
    """Yield what is wrong with messages of this many elements."""
    rng = np.random.default_rng(size)
    normal = rng.standard_normal(size, np.float32)
    tails = (1e-3 * normal * np.exp(4 * rng.standard_normal(size))).astype(np.float32)
    if wire.bytes_of(size) != wire.bytes_of(size):
        yield f"bytes_of({size}) is not the same in two calls"
    for name, values in (
        ("normal random numbers", normal),
        ("numbers with long tails", tails),
        ("zeros", np.zeros(size, np.float32)),
    ):
        given, count = values.copy(), f"{size} element{'s' if size > 1 else ''}"
        payload, again = wire.encode(given), wire.encode(values.copy())
        result, second = wire.decode(payload, size), wire.decode(again.copy(), size)
        if not np.array_equal(given, values):
            yield "encode changes the values that it is given: work on a copy"
        if not np.array_equal(payload, again):
            yield (
                f"encode is not deterministic: its bytes differ between two calls with the same "
                f"{count} of {name}; it must keep no state and draw no random numbers"
            )
        if not np.array_equal(result.view(np.uint32), second.view(np.uint32)):
            yield f"decode is not deterministic for {count} of {name}"
        if not np.isfinite(result).all():
            yield f"decode returns what is not finite for {count} of {name}"
        elif (error := length(values - result)) and not error < length(values):
            yield (
                f"error feedback needs an error that is smaller than the values: for {count} of "
                f"{name} the error has the norm {error:.3g}, and the values {length(values):.3g}"
            )
