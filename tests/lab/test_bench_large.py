"""The parts of `bench large` that run without Ray: the tape of a long run, and recovery from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from archipelago.lab.bench import joiner, joins
from archipelago.lab.bench.large import LargePart, parts_of
from archipelago.lab.bench.long_tape import WHOLE, config_for, left_by_a_run, prepared
from archipelago.lab.bench.scale import layout_of
from archipelago.lab.checks.facts import Truth
from archipelago.lab.checks.judge import InvariantJudge
from cluster.actors.object_store.publish import PART_S
from cluster.config.rule import rule_of, schedule_of
from cluster.storage.folder import Folder
from cluster.storage.playback import Playback
from cluster.storage.segments import segments
from cluster.storage.state_history import relive
from cluster.syncer.measures import Measures
from cluster.syncer.restore import come_back
from coordinator.errors import UserMistake
from coordinator.state import initial

LEARNERS, STEPS = 3, (20, 40)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("cluster.storage.tape.SEGMENT_BYTES", 2_000)
    return prepared(tmp_path / "home", LEARNERS, STEPS, lambda words: None)


def test_prepared_tape_satisfies_all_invariants(folder: Path) -> None:
    config = config_for(LEARNERS)
    layout = layout_of(config)
    rule = rule_of(config, layout)
    judge, played = InvariantJudge(rule, Truth()), Playback(Folder(folder), layout.fingerprint)
    after = initial(rule)
    for heard in relive(rule, played):
        judge.saw(*heard)
        after = heard.after
    assert played.damage is None
    assert played.length > 50 * LEARNERS
    assert after.t == STEPS[-1] + 10
    assert after.merges >= STEPS[-1]
    assert len(segments(Folder(folder))) > 3


@pytest.mark.parametrize(("steps", "times"), [(20, 1), (40, 1), (40, 10)])
def test_syncer_recovers_from_the_files_of_a_long_run(
    folder: Path, tmp_path: Path, steps: int, times: int
) -> None:
    config = config_for(LEARNERS)
    layout = layout_of(config)
    run_dir = tmp_path / "run"
    events, size = left_by_a_run(folder, run_dir, LEARNERS, steps, times)
    groups = dict.fromkeys(config.island_names, "crew")
    measures = Measures("bench", groups, layout.sizes, config.sync.wire_down, now_s=0.0)
    heard: list[int] = []
    back = come_back(Folder(run_dir), rule_of(config, layout), measures, heard.append)
    assert back is not None
    assert (back.damage, back.seq, back.state.t) == (None, events, steps + 10)
    assert (back.heard, heard[-1]) == (len(heard), events - 1)
    assert 0 < back.heard < events / (2 * times)
    assert size > 1_000 * times
    firsts = [each.first for each in segments(Folder(run_dir))]
    assert firsts == sorted({*firsts})
    assert len(firsts) >= 2 * times


def test_tape_is_prepared_once(folder: Path, tmp_path: Path) -> None:
    def fails(words: str) -> None:
        raise AssertionError(words)

    assert prepared(tmp_path / "home", LEARNERS, STEPS, fails) == folder
    (folder / WHOLE).unlink()
    with pytest.raises(AssertionError, match="playing 40 steps of 3 learners"):
        prepared(tmp_path / "home", LEARNERS, STEPS, fails)


@pytest.mark.parametrize("plan", [joins.LARGE, joins.QUICK])
def test_join_bench_measures_only_joins(plan: joins.JoinPlan) -> None:
    config, layout = joins.config_of(plan), joins.layout_of(plan)
    assert 4 * layout.parameters == plan.model_bytes
    assert {len(pieces) for pieces in layout.fragments} == {1}
    assert not schedule_of(config).due(after=0, upto=10_000), "no round in hours"
    alone_s = 8 * 4 * max(layout.sizes) / plan.bits_s
    assert alone_s < PART_S / 3, "a fragment is mapped as it is, also if the machine is busy"


def test_large_model_has_one_gigabyte() -> None:
    assert 1.0e9 < joins.LARGE.model_bytes < 1.1e9
    assert joins.LARGE.learners == 16


def test_pacer_transfers_one_object_at_a_time_and_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [10.0]

    def sleep(for_s: float) -> None:
        now_s[0] += for_s

    monkeypatch.setattr(joiner.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(joiner.time, "sleep", sleep)
    pacer = joiner.Pacer(1e6)
    pacer.carry("a", 2_000_000)
    assert now_s[0] == 12.0
    pacer.carry("a", 2_000_000)
    assert now_s[0] == 12.0, "it is there"
    pacer.carry("b", 500_000)
    assert now_s[0] == 12.5


def test_one_part_can_be_selected() -> None:
    assert parts_of(None) == (LargePart.TAPE, LargePart.JOINS)
    assert parts_of("joins") == (LargePart.JOINS,)
    with pytest.raises(UserMistake, match="--only all: the parts are tape and joins"):
        parts_of("all")
