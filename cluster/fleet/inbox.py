"""The desk between the run's island processes and the keeper.

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
class Posting:
    """The keeper's answer to the process at one seat."""

    island: Island | None
    """The island that it is; None for a spare."""
    starts: int
    """Processes that have begun there since the last contribution, as far as they are counted."""


@dataclass(frozen=True, slots=True)
class Began:
    """A process has begun at this seat, which was this island's, or a spare's."""

    seat: Seat
    island: Island | None
    at_s: float


@dataclass(frozen=True, slots=True)
class Broke:
    """The process at this seat, which was this island, ended with an exception."""

    seat: Seat
    island: Island | None
    words: str
    traceback: str = ""
    """The file of the run directory that has the words; empty if none has."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A spare has asked whether it is needed; `warm`: it could be an island at once."""

    at_s: float
    warm: bool


@dataclass(slots=True)
class Said:
    """Everything that was said since the keeper looked last."""

    words: list[Began | Broke] = field(default_factory=list)
    heard: dict[Seat, Heard] = field(default_factory=dict)


class Desk:
    """One run's desk; every method may be called from any thread, and none waits."""

    def __init__(self, policy: FailurePolicy) -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._postings: Mapping[Seat, Posting] = {}
        self._said = Said()

    def starting(self, seat: Seat, now_s: float) -> float:
        """Note that a process begins here; return for how many seconds it shall wait before it
        does."""
        with self._lock:
            posting = self._postings.get(seat)
            island = None if posting is None else posting.island
            self._said.words.append(Began(seat, island, now_s))
            self._said.heard.pop(seat, None)
            if posting is None:
                return 0.0
            begun = sum(isinstance(it, Began) and it.seat == seat for it in self._said.words)
            return delay_s(self._policy, posting.starts + begun - 1)

    def role(self, seat: Seat, now_s: float, *, warm: bool) -> Island | None:
        """Return which island the process that is here is; None for a spare."""
        with self._lock:
            posting = self._postings.get(seat)
            if posting is not None and posting.island is not None:
                return posting.island
            self._said.heard[seat] = Heard(now_s, warm)
            return None

    def broke(self, seat: Seat, words: str, traceback: str = "") -> None:
        """Note that the process that was here ended with an exception; `words`: its traceback,
        which is in the file `traceback`."""
        with self._lock:
            posting = self._postings.get(seat)
            island = None if posting is None else posting.island
            self._said.words.append(Broke(seat, island, words, traceback))

    # --- called by the keeper ---------------------------------------------------------------------

    def take(self) -> Said:
        """Return what was said since the last call."""
        with self._lock:
            said, self._said = self._said, Said()
        return said

    def post(self, postings: Mapping[Seat, Posting]) -> None:
        """Answer processes like this from now on."""
        with self._lock:
            self._postings = postings
