"""The threads of a file of lines: one writes lines, two flush them, and the depot may fail."""

from __future__ import annotations

from cluster.storage import lines as lines_module
from cluster.storage.lines import Adding, WaitingLines
from tests.shells.memory_depot import HANGS_S, MemoryDepot
from tests.shells.scheduler import Scheduler

LINES, FLUSHES = 12, 8
ANSWER_S = 3 * FLUSHES * HANGS_S


def play(s: Scheduler) -> None:
    """Play one schedule; in the end each line must be there once, in order."""
    with s.controls(lines_module):
        _Play(s).run()


class _Parts(Adding):
    """A file that takes as much of an addition as the seed chooses."""

    def __init__(self, s: Scheduler, depot: MemoryDepot) -> None:
        self.s, self.depot, self.content = s, depot, b""

    def add(self, content: bytes) -> int:
        before, taken = self.content, content[: self.s.rng.randint(1, len(content))]
        self.depot.call("add lines")
        assert self.content == before, "two additions at once"
        self.content = before + taken
        return len(taken)

    def sync(self) -> None:
        self.depot.call("sync lines")

    def close(self) -> None: ...


class _Play:
    def __init__(self, s: Scheduler) -> None:
        self.s, self.depot = s, MemoryDepot(s)
        self.file = _Parts(s, self.depot)
        self.lines = WaitingLines(self.file, 0)
        self.ended = 0

    def run(self) -> None:
        self.s.spawn(self.writes, "writes")
        for name in ("notes", "snapshot"):
            self.s.spawn(self.flushes, name)
        self.s.spawn(self.closes, "closes")
        self.s.run()
        assert self.file.content == b"".join(b"line %d\n" % number for number in range(LINES))
        assert self.lines.length == len(self.file.content)

    def writes(self) -> None:
        for number in range(LINES):
            with self.s.within(HANGS_S / 10, "a line"):
                self.lines.write(f"line {number}")
            self.s.nap("writes", 0.1)
        self.ended += 1

    def flushes(self) -> None:
        for _ in range(FLUSHES):
            try:
                with self.s.within(ANSWER_S, "a flush"):
                    self.lines.flush()
            except OSError:
                pass  # the lines stay queued
            self.s.nap("flushes", 0.1)
        self.ended += 1

    def closes(self) -> None:
        self.s.point("the others end", lambda: self.ended == 3)
        self.depot.sound = True
        self.lines.close()
