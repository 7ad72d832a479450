"""The journal of a ring: its events, one line each, and its memory now and then."""

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
"""Between two times that the memory is kept: what is younger dies with the process."""
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
"""The kind that the journal has for each event and effect; it does not change with a class name."""


class Journal:
    """The tape of a run, and its memory, as they are written."""

    def __init__(self, depot: Depot, events: int, check: Callable[[], None]) -> None:
        """`check`: is the run ours still?"""
        self._depot, self._check, self.events = depot, check, events
        self._lines = depot.lines(TAPE)

    def note(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """Add one line to the tape; the next `remember` makes it durable."""

        def plain(what: Event | Effect) -> dict[str, Any]:
            return {"kind": KINDS[type(what)], **asdict(what)}

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
        self._lines.flush()
        self._lines.close()
