"""The present source replays runs of an earlier source, stored in tests/stored."""

from __future__ import annotations

import shutil
from pathlib import Path

from archipelago import replay

STORED = Path(__file__).parents[1] / "stored"


def test_stored_run_is_replayed_exactly(tmp_path: Path) -> None:
    run_dir = shutil.copytree(STORED / "decoupled", tmp_path / "decoupled")
    result = replay(run_dir)
    assert result.exact
    assert result.events > 50
    assert result.figures["violations"] == 0
    assert result.figures["damage"] is None
