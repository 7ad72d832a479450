"""The threads of an owner: heartbeats, checks and leaving, over a depot that may fail or hang."""

from __future__ import annotations

import json

from cluster.storage import ownership
from cluster.storage.ownership import BEAT_S, me, name_of, take
from tests.shells.memory_depot import HANGS_S, MemoryDepot
from tests.shells.scheduler import Scheduler

CHECKS = 5
WHOLE_S = 60.0
OFTEN = 0.3
"""The chance that a call hangs.

A heartbeat that hangs while the run is left is what matters.
"""
BEGUN = "config.toml"


def play(s: Scheduler) -> None:
    """Play one schedule; no other owner takes the run, and the last entry records its end."""
    with s.controls(ownership):
        _Play(s).run()


class _Play:
    def __init__(self, s: Scheduler) -> None:
        self.s, self.depot = s, MemoryDepot(s, hangs=OFTEN)
        self.depot.files[BEGUN] = b""
        self.own = take(self.depot, "run", me("a"), now_s=s.clock, sleep=s.sleep)

    def run(self) -> None:
        self.s.spawn(self.checks, "checks")
        self.s.spawn(self.leaves, "leaves")
        self.s.run()
        assert self.left(), "a beat took it back"

    def left(self) -> bool:
        return bool(json.loads(self.depot.files[name_of(self.own.number)])["left"])

    def checks(self) -> None:
        for _ in range(CHECKS):
            self.s.nap("checks", WHOLE_S / CHECKS / 4)
            self.own.check(again=True)

    def leaves(self) -> None:
        self.own.start()
        self.s.nap("trains", WHOLE_S / 2)
        self.depot.sound = True  # calls under way may still hang
        with self.s.within(BEAT_S + 1.0, "leaving"):
            self.own.leave(begun=BEGUN)
        with self.s.within(4 * HANGS_S, "the word that it was left"):
            self.s.point("left", self.left)
        self.s.sleep(WHOLE_S)
