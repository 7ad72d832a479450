"""The threads of a donor: many joining learners ask for its moments at once.

Callers that ask while the same moments are copied get the same pieces, or the same error. One copy
is made at a time; a later caller has a new copy made.
"""

from __future__ import annotations

from functools import partial

from cluster.actors.object_store import moment_pieces as giving
from cluster.actors.object_store.moment_pieces import DonatedMoments, MomentPieceRef
from coordinator.parts import Split
from coordinator.protocol import Incarnation, Island, Life
from tests.shells.scheduler import Scheduler

JOINERS = 6
COPY_S = 0.5
ANSWER_S = 60.0
FULL = 0.2
"""The chance that the object store has no room."""
LIVES = [Life(Island("donor"), Incarnation(number)) for number in (1, 2)]


class Full(Exception):
    """An object store without room."""


def play(s: Scheduler) -> None:
    """Play one schedule: joiners, split in one of two ways, ask twice each."""
    with s.controls(giving):
        _Play(s).run()


class _Play:
    def __init__(self, s: Scheduler) -> None:
        self.s, self.giving = s, DonatedMoments()
        self.copying = self.copies = 0

    def run(self) -> None:
        for number in range(JOINERS):
            self.s.spawn(self.joins, f"joiner {number}")
        self.s.run()
        assert self.copying == 0

    def put(self, life: Life, split: Split) -> list[MomentPieceRef] | None:
        """Copy the moments; the pieces name the life and the copy."""
        assert self.copying == 0, "two copies at once"
        self.copying += 1
        self.copies += 1
        number = self.copies
        self.s.nap("copies", COPY_S)
        self.copying -= 1
        if self.s.rng.random() < FULL:
            raise Full
        return [MomentPieceRef(split.hosts, life.incarnation, number, 0, None)]  # type: ignore[arg-type]

    def joins(self) -> None:
        chance = self.s.rng
        for _ in range(2):
            life, split = chance.choice(LIVES), Split(hosts=chance.choice((1, 2)))
            self.s.nap("asks", COPY_S)
            before = self.copies
            try:
                with self.s.within(ANSWER_S, "moments"):
                    pieces = self.giving.once(life, split, partial(self.put, life, split))
            except Full:
                continue
            assert pieces is not None
            ((hosts, incarnation, number, _, _),) = pieces
            assert (hosts, incarnation) == (split.hosts, life.incarnation), "another one's pieces"
            assert number >= before, "a copy that was over before it was asked for"
