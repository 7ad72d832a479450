"""The transfer of a contribution from a learner to its shard, timed without a common clock."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from coordinator.protocol import Life


class Prepared(NamedTuple):
    """An island's answer to a request for a contribution, with its time on the island's side."""

    answer: Any
    """A contribution, the first host's part of one, or None."""
    seconds: float
    """Seconds from the request to the answer, which are not those of the link."""


class Upload(NamedTuple):
    """The transfer of one contribution from a learner to its shard."""

    life: Life
    nbytes: int
    seconds: float
    """Seconds from the request to the last byte, without those of the island."""


def unpacked(answer: object, took_s: float) -> tuple[Any, float | None]:
    """Return an island's answer, and the seconds of its transfer.

    `took_s`: seconds from the request to the answer. The second result is None if the island did
    not state its own part of them, or stated something impossible.
    """
    if type(answer) is not Prepared:
        return answer, None
    own_s: object = answer.seconds
    if type(own_s) is not float or not 0 <= own_s < math.inf:
        return answer.answer, None
    return answer.answer, max(0.0, took_s - own_s)
