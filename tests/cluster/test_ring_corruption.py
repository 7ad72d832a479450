"""Tests of damage to single files of a data-parallel run, followed by a resume.

The damage costs no more than the state that it touched, or the resume is refused with a message.
Whether a refusal is allowed follows from the damage alone, and the leaves are compared with what
the run had in memory when it stored them.
"""

from __future__ import annotations

import random
import time
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from cluster.allreduce.journal import Journal
from cluster.allreduce.ring import Ring, RingStage, advance
from cluster.allreduce.ring_messages import (
    Event,
    Form,
    RingMemberReady,
    RingResume,
    SnapshotStored,
    StepsFinished,
    TrainingPosition,
)
from cluster.allreduce.saved_state import (
    RingMemory,
    RingState,
    load_state,
    name_of,
    read_back,
    save_memory,
    save_state,
)
from cluster.config.load import parse
from cluster.storage.files import json_text, write
from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.layout import load_layout, save_layout
from cluster.syncer.measures import Measures
from coordinator.codec import Wire
from coordinator.errors import ArchipelagoError
from coordinator.protocol import Island
from tests.cluster.played import LAYOUT
from tests.cluster.restored import Harm, at_the_door, beside, copy_of, harms
from tests.cluster.test_ring import A, B, C, Told, held

CONFIG = """
[task]
preset = "byte-tiny"
[run]
mode = "{mode}"
[[islands]]
count = 3
"""
NEEDED = ("config.toml",)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, because no machine crashes here."""
    monkeypatch.setattr("os.fsync", id)


def drawn(step: int) -> RingState:
    """Return a state that is different at every step."""
    rng = np.random.default_rng(step)
    params = [rng.normal(size=leaf.shape).astype(np.float32) for leaf in LAYOUT.leaves]
    moments = [np.asarray(step, np.int32), *(2 * leaf for leaf in params)]
    return RingState(held(step), params, moments if step else None)


def same(a: RingState, b: RingState) -> None:
    assert a.held == b.held
    assert (a.moments is None) == (b.moments is None)
    pairs = zip((*a.params, *(a.moments or ())), (*b.params, *(b.moments or ())), strict=True)
    for mine, wanted in pairs:
        np.testing.assert_array_equal(mine, wanted)
        assert mine.dtype == wanted.dtype


class Turning:
    """A run of three islands that was killed at step 60, ten steps after its newest snapshot."""

    def __init__(self, run_dir: Path, mode: str) -> None:
        self.mode, depot = mode, Folder(run_dir)
        self.config = CONFIG.format(mode=mode)
        write(run_dir / "config.toml", self.config.encode())
        save_layout(depot, LAYOUT)
        beside(run_dir)
        told = Told(elastic=mode.startswith("elastic"))
        journal = Journal(depot, 0, lambda: None)
        self.measures = Measures("r", {Island("a"): "a"}, LAYOUT.sizes, Wire.F32, now_s=0.0)
        form = told.begun()
        journal.note(0.0, SnapshotStored(held(0)), [form])
        save_state(depot, drawn(0), keep=2)
        events: list[Event] = []
        for step in range(1, 61):
            events.append(StepsFinished(form.ring, held(step)))
            if step % 25 == 0:
                save_state(depot, drawn(step), keep=2)
                events.append(SnapshotStored(held(step)))
        for number, event in enumerate(events):
            journal.note(float(number), event, told(event))
        self.ring: Ring = told.ring
        memory = RingMemory(told.ring, 60.0, self.measures.memory(), lives=3, events=journal.events)
        save_memory(depot, memory)
        journal.close()

    def check(self, run_dir: Path, harm: Harm) -> str:
        """Resume, and check the result. Returns the name of the outcome."""
        states = [f"ring/state-{step:08d}.safetensors" for step in (25, 50)]
        intact = [name for name in states if name not in harm.files]
        found = self.resumed(run_dir)
        if isinstance(found, ArchipelagoError):
            assert not intact or set(NEEDED) & {*harm.files}, f"refused: {found}"
            named = any(name.rpartition("/")[2] in str(found) for name in harm.files)
            other = "was configured otherwise" in str(found) and "config.toml" in harm.files
            assert named or other, f"the message lacks the cause: {found}"
            return "refused"
        memory, state, damage = found
        assert state is not None
        assert memory is not None, "a run that was begun is not begun anew"
        same(state, drawn(int(intact[-1][-20:-12])))
        if {states[-1], "ring.json"} & {*harm.files}:
            assert damage, "the lost part is reported"
        ring, _ = advance(Told(elastic=False).rules, memory.ring, RingResume(1))
        assert ring.kept == state.held, "islands begin from the state that is there"
        if "ring.json" not in harm.files:
            assert (ring.held, memory.lives) == (held(60), 3)
        self.goes_on(memory, state.held)
        return "it costs something" if state.held < held(50) else "it costs nothing"

    def resumed(
        self, run_dir: Path
    ) -> tuple[RingMemory | None, RingState | None, str | None] | ArchipelagoError:
        try:
            config = parse(tomllib.loads(self.config))
            at_the_door(run_dir, config)
            load_layout(Folder(run_dir))
            return read_back(Folder(run_dir))
        except ArchipelagoError as error:
            return error

    def goes_on(self, memory: RingMemory, kept: TrainingPosition) -> None:
        """Let all islands join again, and check that the ring forms from the kept state."""
        told = Told(elastic=self.mode.startswith("elastic"))
        told.ring = memory.ring
        effects = told(
            RingResume(memory.ring.generation + 1),
            RingMemberReady(A),
            RingMemberReady(B),
            RingMemberReady(C),
        )
        form = next(each for each in effects if isinstance(each, Form))
        assert (form.held, form.donor) == (kept, None)
        assert told.ring.ring > 0


@pytest.mark.parametrize("mode", ["data-parallel", "elastic-data-parallel"])
def test_single_damage_costs_at_most_the_touched_state(tmp_path: Path, mode: str) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance, run = random.Random(seed), Turning(tmp_path / "run", mode)
    came: Counter[str] = Counter()
    for number, (harm, do) in enumerate(harms(tmp_path / "run", chance)):
        run_dir = copy_of(tmp_path / "run", tmp_path / str(number))
        do(run_dir)
        try:
            came[run.check(run_dir, harm)] += 1
        except BaseException:
            print(f"{mode}: {harm}")
            raise
    print(dict(came))
    assert came.total() >= 30
    assert came["it costs something"] >= 3, "each harm to the newest state"
    assert came["refused"] >= 3
    assert came["it costs nothing"] > came["refused"]


def test_run_whose_final_state_is_gone_is_not_over(tmp_path: Path) -> None:
    depot, told = Folder(tmp_path), Told(elastic=True, steps=50)
    form = told.begun()
    told(StepsFinished(form.ring, held(50)))
    ring = replace(told.ring, stage=RingStage.OVER, kept=held(50), members={})
    for step in (25, 50):
        save_state(depot, drawn(step), keep=2)
    measures = Measures("r", {}, LAYOUT.sizes, Wire.F32, now_s=0.0)
    save_memory(depot, RingMemory(ring, 3.0, measures.memory(), lives=3, events=0))
    memory, _, damage = read_back(depot)
    assert memory is not None
    assert (memory.ring.stage, damage) == (RingStage.OVER, None)
    depot.remove(name_of(held(50)))
    memory, state, damage = read_back(depot)
    assert memory is not None
    assert state is not None
    assert (memory.ring.stage, state.held) == (RingStage.GATHERING, held(25))
    assert damage == (
        "ring/state-00000050.safetensors is not there; ring/state-00000025.safetensors is used"
    )
    again = Told(elastic=True, steps=50)
    again.ring = memory.ring
    (form,) = (
        e
        for e in again(RingResume(1), RingMemberReady(A), RingMemberReady(B))
        if isinstance(e, Form)
    )
    assert form.held == held(25)


def test_states_without_a_checksum_are_read(tmp_path: Path) -> None:
    depot, state = Folder(tmp_path), drawn(25)
    arrays = {f"p{i:05d}": leaf for i, leaf in enumerate(state.params)}
    arrays |= {f"m{i:05d}": leaf for i, leaf in enumerate(state.moments or ())}
    told = {"held": json_text({"step": 25, "tokens": 250, "windows": 25}), "moments": "True"}
    depot.write(name_of(state.held), save(arrays, told))
    found = load_state(depot)
    assert found is not None
    same(found, state)
    depot.write("ring/state-00000030.safetensors", save(arrays, told))
    depot.write("ring/state-25-copy.safetensors", b"people keep copies")
    found = load_state(depot)
    assert found is not None
    same(found, state)


def test_damage_to_the_name_of_the_checksum_does_not_switch_it_off(tmp_path: Path) -> None:
    depot = Folder(tmp_path)
    for step in (25, 50):
        save_state(depot, drawn(step), keep=2)
    name = name_of(held(50))
    depot.write(name, depot.read(name).replace(b'"sha256"', b'"3ha256"'))
    found = load_state(depot)
    assert found is not None
    same(found, drawn(25))


def test_ring_with_a_memory_but_no_state_is_refused(tmp_path: Path) -> None:
    Turning(tmp_path, "data-parallel")
    for step in (25, 50):
        Folder(tmp_path).remove(name_of(held(step)))
    with pytest.raises(Damaged, match="no state of the ring, and the last one was ring/state-0000"):
        read_back(Folder(tmp_path))
