"""Tests that a ring stored by an earlier source is read back, with the same names in its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import numpy as np

from cluster.allreduce.journal import KINDS, Journal
from cluster.allreduce.records import come_back
from cluster.allreduce.ring import Ring, RingMemberState, RingStage, Rules, advance
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
    TrainingPosition,
)
from cluster.allreduce.saved_state import TAPE, load_memory, read_back
from cluster.storage.folder import Folder
from cluster.storage.layout import load_layout
from cluster.syncer.measures import Measures
from coordinator.codec import Wire
from coordinator.protocol import Incarnation, Island, Life

STORED = Folder(Path(__file__).resolve().parents[1] / "stored" / "data-parallel")
LIFE = Life(Island("local-0"), Incarnation(1))
OTHER = Life(Island("local-1"), Incarnation(2))
HELD = TrainingPosition(25, 6400, 200)
PLAIN = {"step": 25, "tokens": 6400, "windows": 200}
EVENTS: tuple[tuple[Event, dict[str, object]], ...] = (
    (
        RingMemberReady(LIFE, HELD, 3),
        {"kind": "Ready", "life": ["local-0", 1], "held": PLAIN, "wasted": 3},
    ),
    (StepsFinished(2, HELD), {"kind": "Turned", "ring": 2, "held": PLAIN}),
    (
        RingMemberLost(LIFE, "killed"),
        {"kind": "Lost", "life": ["local-0", 1], "why": "killed"},
    ),
    (SnapshotStored(HELD), {"kind": "Kept", "held": PLAIN}),
    (RingDrain(LIFE.island, "asked"), {"kind": "Drain", "island": "local-0", "why": "asked"}),
    (RingStop("asked"), {"kind": "Stop", "why": "asked"}),
    (Ended(HELD), {"kind": "Ended", "held": PLAIN}),
    (FinalStateLost(HELD, "died"), {"kind": "Gone", "held": PLAIN, "why": "died"}),
    (RingResume(1), {"kind": "Resume", "generation": 1}),
)
EFFECTS: tuple[tuple[Effect, dict[str, object]], ...] = (
    (
        Form(2, (LIFE, OTHER), HELD, LIFE, "all are there"),
        {
            "kind": "Form",
            "ring": 2,
            "members": [["local-0", 1], ["local-1", 2]],
            "held": PLAIN,
            "donor": ["local-0", 1],
            "why": "all are there",
        },
    ),
    (Pause(2, "asked"), {"kind": "Pause", "ring": 2, "why": "asked"}),
    (
        RingRelease(LIFE, "drained"),
        {"kind": "Release", "life": ["local-0", 1], "why": "drained"},
    ),
    (RingFinish(None), {"kind": "Finish", "donor": None}),
)


def test_stored_ring_is_read_back_and_continues() -> None:
    memory, state, damage = read_back(STORED)
    assert damage is None
    assert memory is not None
    assert state is not None
    assert memory.ring == Ring(
        stage=RingStage.TURNING,
        ring=1,
        members={life.island: RingMemberState(life, None, turns=True) for life in (LIFE, OTHER)},
        held=TrainingPosition(41, 10496, 328),
        kept=HELD,
    )
    assert (memory.lives, memory.events) == (2, 3)
    assert state.held == HELD
    layout = load_layout(STORED)
    assert [leaf.shape for leaf in state.params] == [leaf.shape for leaf in layout.leaves]
    assert all(np.isfinite(leaf).all() for leaf in (*state.params, *(state.moments or ())))

    measures = Measures("r", {}, layout.sizes, Wire.F32, now_s=memory.now_s)
    measures.came_back(memory.measures, None)
    assert {i: each.contributions for i, each in measures.counts.islands.items()} == {
        "local-0": 41,
        "local-1": 41,
    }
    ring, resume = come_back(memory, state)
    assert resume == RingResume(1)
    ring, _ = advance(Rules(elastic=False, count=2, steps=50), ring, RingResume(1))
    assert (ring.stage, ring.held, ring.kept) == (RingStage.GATHERING, memory.ring.held, HELD)


def test_journal_keeps_the_names_that_earlier_sources_wrote(tmp_path: Path) -> None:
    assert KINDS.keys() == {*get_args(Event), *get_args(Effect)}
    assert {type(event) for event, _ in EVENTS} == {*get_args(Event)}
    assert {type(effect) for effect, _ in EFFECTS} == {*get_args(Effect)}
    depot = Folder(tmp_path)
    journal = Journal(depot, 7, lambda: None)
    for event, _ in EVENTS:
        journal.note(1.5, event, [effect for effect, _ in EFFECTS])
    journal.close()
    lines = depot.grown(TAPE).content.splitlines()
    assert [json.loads(line) for line in lines] == [
        [number, 1.5, plain, [said for _, said in EFFECTS]]
        for number, (_, plain) in enumerate(EVENTS, start=7)
    ]


def test_events_counted_by_a_memory_are_in_the_journal_before_it(tmp_path: Path) -> None:
    """A conductor that is killed leaves the lines of all events in its memory."""
    memory = read_back(STORED)[0]
    assert memory is not None
    depot, lines_then = Folder(tmp_path), list[int]()

    def check() -> None:
        lines_then.append(len(depot.grown(TAPE).content.splitlines()))

    journal = Journal(depot, 0, check)
    for event, _ in EVENTS:
        journal.note(1.5, event, [])
    journal.remember(memory)
    assert lines_then == [0], "nothing is written before it is known whose the run is"
    assert len(depot.grown(TAPE).content.splitlines()) == journal.events == len(EVENTS)
    assert load_memory(depot) == memory
