"""The token counts of a run are refused if they are not those of its tape."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from archipelago.lab.bench.wan_cut import CutPlan, ledger_of
from archipelago.lab.checks.replay import replay
from archipelago.lab.checks.token_counts import TOKEN_FATES, count_problems
from coordinator.ledger import totals
from tests.cluster.played import LAYOUT, TOKENS, Played

STEPS = 24
ROUND = 2 * 4 * TOKENS
"""The tokens of a round: two islands with four steps each."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    Played(folder).to_the_end(STEPS)
    return folder


@pytest.fixture
def run_dir(played: Path, tmp_path: Path) -> Path:
    return shutil.copytree(played, tmp_path / "run")


def changed(run_dir: Path, **by: int) -> None:
    """Add to counts in the summary of a run."""
    path = run_dir / "summary.json"
    counts = json.loads(path.read_text())
    path.write_text(json.dumps(counts | {name: counts[name] + add for name, add in by.items()}))


def test_counts_of_an_undamaged_run_are_those_of_its_tape(run_dir: Path) -> None:
    counts = json.loads((run_dir / "summary.json").read_text())
    assert counts["tokens_trained"] == 2 * STEPS * TOKENS
    assert counts["tokens_merged"] > 0
    assert count_problems(run_dir, ROUND) == []
    ledger = ledger_of(run_dir, CutPlan(0.0))
    assert (ledger["balanced"], ledger["ledger_problems"]) == (True, [])


@pytest.mark.parametrize("to", [name for name in TOKEN_FATES if name != "tokens_merged"])
def test_wrong_count_is_refused_although_the_sum_is_right(run_dir: Path, to: str) -> None:
    merged = json.loads((run_dir / "summary.json").read_text())["tokens_merged"]
    changed(run_dir, tokens_merged=-5, **{to: 5})
    problems = count_problems(run_dir, ROUND)
    assert f"tokens_merged is {merged - 5} in summary.json, and {merged} on the tape" in problems
    assert any(each.startswith(f"{to} is ") for each in problems)
    assert f"tokens_merged is {merged - 5}, and the merges on the tape have {merged}.0" in problems
    assert ledger_of(run_dir, CutPlan(0.0))["balanced"] is False
    report = replay(run_dir)
    assert report["exact"] is False
    assert report["compared"] == {
        "effects": True, "state": True, "fragments": True, "tokens": False
    }  # fmt: skip


def test_negative_count_and_a_wrong_sum_are_refused(run_dir: Path) -> None:
    changed(run_dir, tokens_lost=-1)
    problems = count_problems(run_dir, ROUND)
    assert "tokens_lost is -1, below 0" in problems
    total = 2 * STEPS * TOKENS
    assert f"the fates add up to {total - 1} tokens, and tokens_trained is {total}" in problems


def test_more_outstanding_than_a_round_holds_is_refused(tmp_path: Path) -> None:
    """The run stops between two rounds, and its last hand-ins never arrive."""
    run = Played(tmp_path)
    run.train(6)
    run.keep_snapshot()
    run.close()
    left = totals(run.state.ledger, LAYOUT.sizes).outstanding
    assert left > 0
    counts = replay(tmp_path)["tokens"]
    assert isinstance(counts, dict)
    assert counts["tokens_outstanding"] == left
    (tmp_path / "summary.json").write_text(json.dumps({"global_sha256": None, **counts}))
    text = f"tokens_outstanding is {left}, and one round of the islands can hold {left - 1}"
    assert text in count_problems(tmp_path, left - 1)
    assert text not in count_problems(tmp_path, left)


def test_tape_without_its_end_is_refused(run_dir: Path) -> None:
    segment = max(run_dir.glob("tape-*.arrow"))
    segment.write_bytes(segment.read_bytes()[:-100])
    assert len(count_problems(run_dir, ROUND)) >= 2
