"""The journal of a ring: a log of its events, one line each, and a periodic memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cluster.allreduce.ring_messages import (
    Effect,
    Ended,
    Event,
    FinalStateLost,
    Form,
    Pause,
    RingDrain,
    RingFinish,
    RingMemberLost,
    RingMemberReady,
    RingRelease,
    RingResume,
    RingStop,
    SnapshotStored,
    StepsFinished,
)
from cluster.allreduce.saved_state import TAPE, RingMemory, save_memory
from cluster.storage.depot import Depot
from cluster.storage.files import json_text

MEMORY_S = 1.0
"""Seconds between two writes of the memory; younger events are lost if the process dies."""
KINDS: Mapping[type[object], str] = {
    RingMemberReady: "Ready",
    StepsFinished: "Turned",
    RingMemberLost: "Lost",
    SnapshotStored: "Kept",
    RingDrain: "Drain",
    RingStop: "Stop",
    Ended: "Ended",
    FinalStateLost: "Gone",
    RingResume: "Resume",
    Form: "Form",
    Pause: "Pause",
    RingRelease: "Release",
    RingFinish: "Finish",
}
"""The journal's name of each event and effect; it stays when a class is renamed."""


class Journal:
    """The writer of a run's tape and memory."""

    def __init__(self, depot: Depot, events: int, check: Callable[[], None]) -> None:
        """Open the tape after `events` events; `check` raises if the run has another owner."""
        self._depot, self._check, self.events = depot, check, events
        self._lines = depot.lines(TAPE)

    def note(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """Add one line to the tape; the next `remember` makes it durable."""

        def plain(item: Event | Effect) -> dict[str, Any]:
            return {"kind": KINDS[type(item)], **asdict(item)}

        line = [self.events, now_s, plain(event), [plain(each) for each in effects]]
        self._lines.write(json_text(line))
        self.events += 1

    def remember(self, memory: RingMemory) -> None:
        """Make all lines durable, then the memory, which counts their events.

        Errors: `OSError`; what `check` raises.
        """
        self._check()
        self._lines.flush()
        save_memory(self._depot, memory)

    def close(self) -> None:
        """Make all lines durable and close the tape.

        Errors: `OSError`.
        """
        self._lines.flush()
        self._lines.close()
