"""Runs of an earlier source, kept in tests/stored: a later source replays them."""

from __future__ import annotations

import shutil
from pathlib import Path

from archipelago import replay
from cluster.allreduce.saved_state import read_back
from cluster.config.load import load
from cluster.storage.open_depot import depot_of

STORED = Path(__file__).parents[1] / "stored"


def test_a_stored_run_is_replayed_exactly(tmp_path: Path) -> None:
    run_dir = shutil.copytree(STORED / "decoupled", tmp_path / "decoupled")
    result = replay(run_dir)
    assert result.exact
    assert result.events > 50
    assert result.figures["violations"] == 0
    assert result.figures["damage"] is None


def test_the_state_of_a_stored_ring_is_read(tmp_path: Path) -> None:
    run_dir = shutil.copytree(STORED / "data-parallel", tmp_path / "ring")
    found = read_back(depot_of(load(run_dir / "config.toml"), run_dir))
    assert found.memory is not None
    assert found.state is not None
    assert found.state.held.step == 25
    assert len(found.memory.ring.members) == 2
