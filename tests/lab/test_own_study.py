"""A fragmenting, a gate and a data source of a user's own in the cells of a study."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from archipelago.examples import generated_data
from archipelago.lab.study.cells import CellFiles
from archipelago.lab.study.plan import planned
from archipelago.lab.study.training_jobs import trained
from tests import own_fragmentings, own_gates

pytestmark = pytest.mark.slow

TABLES = """
[study]
seeds = 1
[run]
steps = 24
[task]
target = "SOURCE:task"
[data]
lease_windows = 32
[optimizer]
learning_rate = 0.05
warmup_steps = 0
[sync]
every = 6
fragments = 2
[[islands]]
group = "local"
count = 3
batch_size = 8
[[arms]]
name = "ours"
[[arms]]
name = "cut"
set = { sync.fragmenting = "CUTS:in_turn", sync.fragmenting_options.first = 1 }
[[arms]]
name = "open"
set = { sync.gate = "GATES:longest", sync.gate_options.most = 1e9 }
[[arms]]
name = "gated"
set = { sync.gate = "GATES:longest", sync.gate_options.most = 0.5 }
[[arms]]
name = "killed"
set = { faults.plan = [{at_step = 8, kind = "kill", island = "local-1"}] }
"""


def test_study_trains_with_an_own_fragmenting_gate_and_data_source(tmp_path: Path) -> None:
    """Each cell is trained in this process, as a study does in another one."""
    text = TABLES.replace("SOURCE", generated_data.__name__)
    text = text.replace("CUTS", own_fragmentings.HERE).replace("GATES", own_gates.HERE)
    files, study = CellFiles(tmp_path), planned(tomllib.loads(text), origin="t", name="t")
    cells = {row.arm: trained(files.ask(row.cells[0])) for row in study.rows}
    assert {arm: cell.failed for arm, cell in cells.items()} == dict.fromkeys(cells, "")
    figures: dict[str, Any] = {arm: cell.figures for arm, cell in cells.items()}
    hashes = {arm: each["global_sha256"] for arm, each in figures.items()}
    assert hashes["open"] == hashes["ours"], "a gate that refuses nothing changes nothing"
    assert len({*hashes.values()}) == 4
    rejected = {arm: each["rejected_contributions"] for arm, each in figures.items()}
    assert rejected.pop("gated") > 0
    assert not any(rejected.values())
    assert figures["gated"]["merges"] > 0, "not all were refused"
    for each in figures.values():
        assert each["heldout_loss"] < each["initial_heldout_loss"]
