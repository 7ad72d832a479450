"""The threads of a tape: one appends events, another one writes to a depot that may fail."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from cluster.storage import segment_queue
from cluster.storage import tape as tape_module
from cluster.storage.playback import read_tape
from cluster.storage.tape import Tape
from coordinator.protocol import Stop
from tests.coordinator.given import LAYOUT
from tests.shells.memory_depot import HANGS_S, MemoryDepot
from tests.shells.scheduler import Scheduler

EVENTS = 15
ANSWER_S = 20 * HANGS_S
SEALS = 0.3


def play(s: Scheduler) -> None:
    """Play one schedule.

    What was flushed without trouble must be there, and in the end all events.
    """
    with s.controls(tape_module, segment_queue), _short_segments():
        _Play(s).run()


@contextmanager
def _short_segments() -> Generator[None]:
    """Make each `seal` begin a segment."""
    before, tape_module.SEGMENT_BYTES = tape_module.SEGMENT_BYTES, 1
    try:
        yield
    finally:
        tape_module.SEGMENT_BYTES = before


class _Play:
    def __init__(self, s: Scheduler) -> None:
        self.s, self.depot = s, MemoryDepot(s)

    def run(self) -> None:
        self.s.spawn(self.syncer, "syncer")
        self.s.run()
        tape = read_tape(self.depot, LAYOUT)
        assert (tape.length, tape.damage) == (EVENTS, None)
        assert [row.event for row in tape.events] == [Stop(f"{n}") for n in range(EVENTS)]

    def syncer(self) -> None:
        self.depot.sound = True  # otherwise the run might not begin
        tape = Tape(self.depot, 0, LAYOUT)
        self.depot.sound = False
        for number in range(EVENTS):
            tape.append(self.s.now_s, Stop(f"{number}"), ())
            if self.s.rng.random() < SEALS:
                tape.seal()
            flushed = tape.flush()
            if flushed is not None and self.s.rng.random() < 0.5:
                with self.s.within(ANSWER_S, "a flush"):
                    flushed.result()
                if tape.trouble is None:
                    assert read_tape(self.depot, LAYOUT).length == number + 1, "it was promised"
        self.depot.sound = True
        with self.s.within(ANSWER_S, "the end of the tape"):
            tape.close()
        assert tape.trouble is None, "it is durable again"
