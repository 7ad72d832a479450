"""Tests that docs/explanation/memory.md agrees with the kernel's counts, to within a tenth."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from archipelago.lab.bench.memory import (
    Term,
    in_flight,
    island_terms,
    model_file_terms,
    recovery_terms,
    shard_terms,
    store_terms,
)
from cluster.config.schema import Config
from tests.cluster.measured import ENVIRONMENT, LAYOUT, config_of

ROOT = Path(__file__).parents[2]
OFF = 0.10


@pytest.mark.long
@pytest.mark.slow
def test_memory_of_processes_matches_the_formulas() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.measured"],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    off: dict[str, float] = {}
    for part, found in json.loads(done.stdout.splitlines()[-1]).items():
        for name, (formula, kernel) in found.items():
            off[f"{part}: {name}"] = kernel / formula - 1
            print(f"{part}, {name}: {formula / 1e6:.1f} MB by the formula, {kernel / 1e6:.1f}")
    assert len(off) >= 12
    assert all(abs(each) <= OFF for each in off.values()), off


def terms_of(config: Config) -> list[Term]:
    return [
        *shard_terms(config, LAYOUT, stored=False),
        in_flight(config, LAYOUT),
        *island_terms(config, LAYOUT),
        *recovery_terms(config, LAYOUT),
        *store_terms(config, LAYOUT, shards=True),
        *model_file_terms(LAYOUT),
    ]


def test_memory_page_has_each_term_with_its_key() -> None:
    page = (ROOT / "docs" / "explanation" / "memory.md").read_text()
    rows = {
        cells[1].strip(): cells for line in page.splitlines() if len(cells := line.split("|")) > 4
    }
    for term in terms_of(config_of('sync.anchor="current"')):
        row = rows[term.name]
        assert f"`{term.key}`" in row[3] if term.key else not re.search("`", row[3]), term
