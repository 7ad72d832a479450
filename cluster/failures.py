"""Failures of one island: exceptions and unusable messages, which never affect other islands.

A failure is classified by type where it occurs, counted by its reason and kept in the notes. At
worst it ends that island's life (docs/explanation/protocol.md, An island that fails).
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from cluster.transfers import Upload
from coordinator.errors import Malformed
from coordinator.protocol import Life, Reached

WORDS = 160
"""Largest length of a failure's `why`, in characters.

Some error messages are a page long, and both `status` and the tape repeat them.
"""


class Reason(StrEnum):
    """The activity in which an island failed, or the defect that was found.

    Each reason is a label of a metric, so there are few.
    """

    TRAIN = "train"
    """An exception on the island's own thread, while starting, stepping or sending messages."""
    HAND_IN = "hand_in"
    """An exception in the hand-in call."""
    OFFER = "offer"
    """An exception in the offer call."""
    MOMENTS = "moments"
    """An exception in the call for optimizer moments."""
    WORDS = "words"
    """An exception in a call that brings the island a message."""
    SENT = "sent"
    """A message or answer that the protocol does not allow."""
    STORE = "store"
    """A full object store: neither memory nor the disk behind it had room."""
    UNHEARD = "unheard"
    """An exception on a thread or in a callback of the syncer or a shard that was never awaited."""


class Unjudged(StrEnum):
    """The reason why an evaluation of the model failed; also a label of a metric."""

    RAISED = "raised"
    DIED = "died"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of one island."""

    reason: Reason
    """The activity that failed, or the defect that was found."""
    why: str
    """The message, in one line."""
    ends: bool = True
    """Whether the failure ends the island's life, so that its process starts again."""


Losses = Sequence[tuple[Life | None, Failure]]
"""Failures, each with the life that failed; None if it belongs to no particular life."""


class Answered(NamedTuple):
    """The results of earlier publications and requests, returned when the next version is sent."""

    failed: Losses = ()
    """Failures of islands to take a publication in since the last answer."""
    reached: Reached | None = None
    """The learners that the fragment's last publication has reached; None if there are none."""
    uploads: Sequence[Upload] = ()
    """Contributions that the shard has received since the last answer."""


def raised(reason: Reason, error: BaseException) -> Failure:
    """Classify an exception that an island raised; `SENT` replaces the reason of a `Malformed`."""
    origin = origin_of(error)
    if isinstance(origin, Malformed):
        reason = Reason.SENT
    return Failure(reason, f"{type(origin).__name__} in {reason}: {_with_place(error)}")


def class_and_message(error: BaseException) -> str:
    """Return an exception's class and message, and where it was raised if that is known."""
    return f"{type(origin_of(error)).__name__}: {_with_place(error)}"


def _with_place(error: BaseException) -> str:
    """Return the message of an exception, with the file and line that raised it if known."""
    origin = origin_of(error)
    frames = traceback.extract_tb(origin.__traceback__)
    if not frames:
        return in_short(str(origin))
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    frame = (own or frames)[-1]
    place = "/".join(Path(frame.filename).parts[-2:])
    return f"{in_short(str(origin))} ({place}:{frame.lineno})"


def origin_of(error: BaseException) -> BaseException:
    """Return the exception that another process raised (Ray keeps it as `cause`), or the error."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def in_short(text: str) -> str:
    """Return the first line that is not empty, cut to `WORDS` characters."""
    line = next(filter(None, map(str.strip, text.splitlines())), "")
    return line if len(line) <= WORDS else f"{line[: WORDS - 4]} ..."
