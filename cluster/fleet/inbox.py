"""The inbox of the keeper, for what the processes of islands and spares tell it.

Processes ask from threads of their own and are answered at once, from what the keeper has posted
last. What they say waits here until the keeper takes it at its next look, each word with the island
that its process was when it spoke.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.config.schema import FailurePolicy
from cluster.fleet.reconcile import delay_s
from cluster.names import Seat
from coordinator.protocol import Island


@dataclass(frozen=True, slots=True)
class SeatAssignment:
    """The keeper's answer to the process at one seat."""

    island: Island | None
    """The island that it is; None for a spare."""
    starts: int
    """Processes that have begun there since the last contribution, as far as they are counted."""


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """A process has started at this seat, which was this island's, or a spare's."""

    seat: Seat
    island: Island | None
    at_s: float


@dataclass(frozen=True, slots=True)
class ProcessFailed:
    """The process at this seat, which was this island, has ended with an exception."""

    seat: Seat
    island: Island | None
    words: str
    traceback: str = ""
    """The file of the run directory that has the words; empty if none has."""


@dataclass(frozen=True, slots=True)
class SpareHeartbeat:
    """A spare has asked whether it is needed; `warm`: it could be an island at once."""

    at_s: float
    warm: bool


@dataclass(slots=True)
class InboxContents:
    """The messages that have arrived since the keeper looked last."""

    words: list[ProcessStarted | ProcessFailed] = field(default_factory=list)
    heard: dict[Seat, SpareHeartbeat] = field(default_factory=dict)


class IslandInbox:
    """The inbox of one run. Every method may be called from any thread, and none waits."""

    def __init__(self, policy: FailurePolicy) -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._postings: Mapping[Seat, SeatAssignment] = {}
        self._said = InboxContents()

    def starting(self, seat: Seat, now_s: float) -> float:
        """Note that a process begins here; return for how many seconds it shall wait before it
        does."""
        with self._lock:
            posting = self._postings.get(seat)
            island = None if posting is None else posting.island
            self._said.words.append(ProcessStarted(seat, island, now_s))
            self._said.heard.pop(seat, None)
            if posting is None:
                return 0.0
            begun = sum(
                isinstance(it, ProcessStarted) and it.seat == seat for it in self._said.words
            )
            return delay_s(self._policy, posting.starts + begun - 1)

    def role(self, seat: Seat, now_s: float, *, warm: bool) -> Island | None:
        """Return which island the process that is here is; None for a spare."""
        with self._lock:
            posting = self._postings.get(seat)
            if posting is not None and posting.island is not None:
                return posting.island
            self._said.heard[seat] = SpareHeartbeat(now_s, warm)
            return None

    def broke(self, seat: Seat, words: str, traceback: str = "") -> None:
        """Note that the process that was here ended with an exception; `words`: its traceback,
        which is in the file `traceback`."""
        with self._lock:
            posting = self._postings.get(seat)
            island = None if posting is None else posting.island
            self._said.words.append(ProcessFailed(seat, island, words, traceback))

    # --- called by the keeper ---------------------------------------------------------------------

    def take(self) -> InboxContents:
        """Return what was said since the last call."""
        with self._lock:
            said, self._said = self._said, InboxContents()
        return said

    def post(self, postings: Mapping[Seat, SeatAssignment]) -> None:
        """Answer processes like this from now on."""
        with self._lock:
            self._postings = postings
