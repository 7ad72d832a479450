"""The keeper's inbox for messages from the processes of islands and spares.

Processes call from threads of their own and are answered at once, from what the keeper posted last.
Their messages wait here until the keeper's next look, each with the island that its process was at
that time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.config.schema import FailurePolicy
from cluster.fleet.reconcile import delay_s
from cluster.names import Seat
from coordinator.protocol import Island

ON_PURPOSE = "preempted: on purpose"
"""The reason of an island that the fault `preempt` hits."""


@dataclass(frozen=True, slots=True)
class SeatAssignment:
    """The keeper's answer to the process at one seat."""

    island: Island | None
    """The island of the process; None for a spare."""
    starts: int
    """Counted starts of processes at this seat since its last contribution."""


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """A process has started at this seat, as this island, or as a spare."""

    seat: Seat
    island: Island | None
    at_s: float


@dataclass(frozen=True, slots=True)
class ProcessFailed:
    """The process at this seat, which ran this island, has ended with an exception."""

    seat: Seat
    island: Island | None
    words: str
    traceback: str = ""
    """The file of the run directory with its traceback; empty if there is none."""


@dataclass(frozen=True, slots=True)
class SeatNotice:
    """The process at this seat, or its node, will be taken away."""

    seat: Seat
    island: Island | None
    """The island that it ran; None for a spare."""
    why: str
    by_s: float
    """The time at which it is gone, in seconds of the monotonic clock."""
    node: str | None = None
    """Ray's id of the node that goes away; None: only the process does."""
    stays_away: bool = False
    """True if the island is placed again only after `by_s`."""


@dataclass(frozen=True, slots=True)
class SpareHeartbeat:
    """A spare has asked whether it is needed."""

    at_s: float
    warm: bool
    """Whether it could run an island at once."""


@dataclass(slots=True)
class InboxContents:
    """The messages that have arrived since the keeper's last look."""

    words: list[ProcessStarted | ProcessFailed] = field(default_factory=list)
    """Starts and failures of processes, in order."""
    heard: dict[Seat, SpareHeartbeat] = field(default_factory=dict)
    """The last heartbeat of each spare."""


class IslandInbox:
    """The inbox of one run; every method may be called from any thread, and none blocks."""

    def __init__(self, policy: FailurePolicy) -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._postings: Mapping[Seat, SeatAssignment] = {}
        self._said = InboxContents()
        self._notices: list[SeatNotice] = []

    def starting(self, seat: Seat, now_s: float) -> float:
        """Note that a process begins at this seat; return how many seconds it waits first."""
        with self._lock:
            posting = self._postings.get(seat)
            island = None if posting is None else posting.island
            self._said.words.append(ProcessStarted(seat, island, now_s))
            self._said.heard.pop(seat, None)
            if posting is None:
                return 0.0
            unread_starts = sum(
                isinstance(word, ProcessStarted) and word.seat == seat for word in self._said.words
            )
            return delay_s(self._policy, posting.starts + unread_starts - 1)

    def role(self, seat: Seat, now_s: float, *, warm: bool) -> Island | None:
        """Return the island of the process at this seat; None for a spare.

        The call is the heartbeat of a spare. `warm`: it could run an island at once.
        """
        with self._lock:
            posting = self._postings.get(seat)
            if posting is not None and posting.island is not None:
                return posting.island
            self._said.heard[seat] = SpareHeartbeat(now_s, warm)
            return None

    def broke(self, seat: Seat, words: str, traceback: str = "") -> None:
        """Note that the process at this seat ended with an exception.

        `words`: its traceback, which is in the file `traceback`.
        """
        with self._lock:
            posting = self._postings.get(seat)
            island = None if posting is None else posting.island
            self._said.words.append(ProcessFailed(seat, island, words, traceback))

    def notice(self, seat: Seat, why: str, by_s: float, node: str | None) -> None:
        """Note that this seat's process, or its node, will be taken away at this time."""
        with self._lock:
            posting = self._postings.get(seat)
            island = None if posting is None else posting.island
            self._notices.append(SeatNotice(seat, island, why, by_s, node))

    def preempt(self, island: Island, for_s: float) -> None:
        """Note that the machines of this island, if it has any, are taken away for `for_s`."""
        by_s = time.monotonic() + for_s
        with self._lock:
            for seat, posting in self._postings.items():
                if posting.island == island:
                    notice = SeatNotice(seat, island, ON_PURPOSE, by_s, stays_away=True)
                    self._notices.append(notice)

    # --- called by the keeper ---------------------------------------------------------------------

    def take(self) -> InboxContents:
        """Return the messages since the last call."""
        with self._lock:
            contents, self._said = self._said, InboxContents()
        return contents

    def take_notices(self) -> list[SeatNotice]:
        """Return the notices since the last call."""
        with self._lock:
            notices, self._notices = self._notices, []
        return notices

    def post(self, postings: Mapping[Seat, SeatAssignment]) -> None:
        """Answer processes from these assignments from now on."""
        with self._lock:
            self._postings = postings
