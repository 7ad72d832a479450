"""What one island raises or sends that is of no use, and what that means for it: never for others.

It is told apart by type where it comes up, counted by its reason, kept in the notes, and at worst
ends that island's life (docs/protocol.md, An island that fails).
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from coordinator.errors import Malformed
from coordinator.protocol import Life, Reached

WORDS = 160
"""Characters of a `why`: some errors are a page long, and `status` and tape repeat them."""


class Reason(StrEnum):
    """What an island was doing, or what was the matter; a label of metrics, so there are few."""

    TRAIN = "train"  # raised on a thread of its own: it was starting, stepping or speaking
    HAND_IN = "hand_in"  # raised in this call, and so on
    OFFER = "offer"
    MOMENTS = "moments"
    WORDS = "words"
    SENT = "sent"  # what came of it is not what the protocol has words for
    STORE = "store"  # the object store, and the disk behind it, had no room
    UNHEARD = "unheard"  # raised on a thread, or in a callback, of syncer or shard: nobody waited


class Unjudged(StrEnum):
    """Why an evaluation of the model came to nothing; a label too."""

    RAISED = "raised"
    DIED = "died"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure. `ends`: the life it is of is over, and its process begins anew."""

    reason: Reason
    why: str
    ends: bool = True


Losses = Sequence[tuple[Life | None, Failure]]
"""Failures, each with the life that it is of; None: of nobody in particular."""


class Answered(NamedTuple):
    """What is known of publications when another one is sent: which islands `failed` to take one
    in since, and whom the last one of the fragment has `reached`, if anybody."""

    failed: Losses = ()
    reached: Reached | None = None


def raised(reason: Reason, error: BaseException) -> Failure:
    """What an island raised while it was doing this, on whichever side it was caught."""
    origin = origin_of(error)
    if isinstance(origin, Malformed):
        reason = Reason.SENT
    return Failure(reason, f"{type(origin).__name__} in {reason}: {_with_place(error)}")


def words_of(error: BaseException) -> str:
    """Return the class of an exception, its message, and where it was raised if that is known."""
    return f"{type(origin_of(error)).__name__}: {_with_place(error)}"


def _with_place(error: BaseException) -> str:
    """Return the message of an exception, with the file and the line that raised it."""
    origin = origin_of(error)
    frames = traceback.extract_tb(origin.__traceback__)
    if not frames:
        return in_short(str(origin))
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    frame = (own or frames)[-1]
    place = "/".join(Path(frame.filename).parts[-2:])
    return f"{in_short(str(origin))} ({place}:{frame.lineno})"


def origin_of(error: BaseException) -> BaseException:
    """What another process raised, if it came from there (Ray keeps it as `cause`)."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def in_short(text: str) -> str:
    """Its first line, as far as it has room."""
    line = next(filter(None, map(str.strip, text.splitlines())), "")
    return line if len(line) <= WORDS else f"{line[: WORDS - 4]} ..."
