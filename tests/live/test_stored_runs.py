"""The present source resumes runs that an earlier source left half-way, on real Ray."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.live.cli import place

STORED = Path(__file__).parents[1] / "stored"
pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "mode", ["decoupled", pytest.param("data-parallel", marks=pytest.mark.long)]
)
def test_stored_run_is_resumed(mode: str) -> None:
    with place() as here:
        shutil.copytree(STORED / mode, here.run_dir)
        done = here.run(
            "run", str(here.run_dir / "config.toml"), "--run-dir", str(here.run_dir),
            "--resume", "--json",
        )  # fmt: skip
        assert done.code == 0, done.err
        summary: dict[str, Any] = json.loads(done.out)
        kept = ("merged", "discarded", "lost", "outstanding")
        assert sum(summary[f"tokens_{each}"] for each in kept) == summary["tokens_trained"]
        assert summary["tokens_trained"] >= 0.9 * 600 * 4 * 32, "of two islands, or of one at least"
        assert summary["heldout_loss"] < 0.7 * summary["initial_heldout_loss"]
