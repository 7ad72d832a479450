"""`archipelago replay` rebuilds a run exactly, or reports in one message what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archipelago.cli.main import main
from archipelago.lab.checks.replay import replay as replayed
from cluster.config.load import load
from cluster.config.rule import rule_of
from cluster.shard.rebuild import RebuiltFragments
from cluster.storage.contributions import ContributionStore
from cluster.storage.folder import Folder
from cluster.storage.fragments import FragmentStore
from cluster.storage.playback import read_tape
from cluster.storage.state_history import OtherRules, relive
from coordinator import advance as rules
from coordinator import merge_outcomes, orders, roster
from coordinator.codec import WithMoments
from coordinator.protocol import Arrived, Fragment, Item, Merge, Reference
from coordinator.state import initial
from tests.cluster.played import CONFIG, LAYOUT, Played


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    Played(tmp_path).to_the_end(24)
    return tmp_path


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str], run_dir: Path) -> Callable[[], tuple[int, str, str]]:
    """Return a function that runs the command: exit code, standard output, standard error."""

    def run() -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["replay", str(run_dir), "--json"])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return run


Replay = Callable[[], tuple[int, str, str]]


def told(replay: Replay) -> dict[str, Any]:
    """Return the printed result of a run that is readable, but not exact."""
    code, out, err = replay()
    assert (code, err) == (1, "")
    result = json.loads(out)
    assert result["exact"] is False
    return result


def refused(replay: Replay) -> str:
    """Return the one-line message about a run that cannot be replayed."""
    code, out, err = replay()
    assert (code, json.loads(out)["error"]["kind"]) == (1, "failure")
    assert err.startswith("archipelago: ")
    assert len(err.splitlines()) == 1
    return err


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_run_is_rebuilt_bit_for_bit(replay: Replay, run_dir: Path) -> None:
    code, out, err = replay()
    result = json.loads(out)
    assert (code, err, result["exact"]) == (0, "", True)
    assert result["compared"] == {
        "effects": True, "state": True, "fragments": True, "tokens": True
    }  # fmt: skip
    assert result["merges"] > 8
    assert (result["violations"], result["violated"]) == (0, None)
    wanted = json.loads((run_dir / "summary.json").read_text())["global_sha256"]
    assert result["global_sha256"] == wanted


def test_run_with_shared_moments_is_rebuilt_with_them(tmp_path: Path) -> None:
    Played(tmp_path, CONFIG.replace("[sync]", '[sync]\nmoments = "mean"')).to_the_end(24)
    result = replayed(tmp_path)
    assert result["exact"] is True
    assert result["compared"] == {
        "effects": True, "state": True, "fragments": True, "tokens": True
    }  # fmt: skip
    depot, fragments = Folder(tmp_path), range(len(LAYOUT.fragments))
    tape = [event for _, _, event, _ in read_tape(depot, LAYOUT.fingerprint).events]
    came = [event.contribution for event in tape if isinstance(event, Arrived)]
    with_moments = [each for each in came if each.moments_norm is not None]
    assert 0 < len(with_moments) < len(came)
    store = FragmentStore(depot, LAYOUT, keep=2)
    assert all(store.newest(Fragment(p)).moments is not None for p in fragments)
    for each in with_moments:
        sent = ContributionStore(depot).load(each.id, LAYOUT.fingerprint)
        assert isinstance(sent, WithMoments)
        assert each.bytes == sent.nbytes


def test_model_is_rebuilt_without_contributions_on_trial(run_dir: Path) -> None:
    """The run keeps only what it merged; what is measured beside it changes no bit."""
    config, depot = load(run_dir / "config.toml"), Folder(run_dir)
    rebuilt = RebuiltFragments(config, LAYOUT, depot, ContributionStore(depot))
    rule, tried = rule_of(config, LAYOUT), 0
    for step in relive(rule, read_tape(depot, LAYOUT.fingerprint).events, initial(rule)):
        effects = list(step.effects)
        for i, effect in enumerate(effects):
            if isinstance(effect, Merge):
                beside = replace(effect.items[0].contribution, reference=Reference("on trial"))
                effects[i] = replace(effect, trial=(beside,), measure=True)
                tried += 1
        rebuilt.follow(step.event, tuple(effects))
    assert tried > 0
    assert rebuilt.sha256() == json.loads((run_dir / "summary.json").read_text())["global_sha256"]


def test_other_rules_are_detected_at_the_first_different_answer(
    replay: Replay, run_dir: Path
) -> None:
    config = run_dir / "config.toml"
    rule = rule_of(load(config), LAYOUT)
    config.write_text(config.read_text().replace("[sync]", "[sync]\nquorum = 2"))
    result = told(replay)
    assert result["compared"]["effects"] is False
    assert "event " in result["differs"]
    assert "answered otherwise" in result["differs"]
    assert result["events"] < 20
    recording = read_tape(Folder(run_dir), LAYOUT.fingerprint)
    assert len([*relive(rule, recording.events)]) == len(recording.events)
    changed = [row._replace(answer=row.answer ^ (row.seq == 7)) for row in recording.events]
    heard = relive(rule, changed)
    assert [next(heard).event for _ in range(7)] == [row.event for row in changed[:7]]
    with pytest.raises(OtherRules, match="event 7 of the tape"):
        next(heard)


BROKEN: dict[str, tuple[object, str, Callable[..., object]]] = {
    "weights are tokens^2/steps": (
        orders, "weigh", lambda items, capped: tuple(Item(each, 1.0) for each in items)
    ),
    "t is the K-th clock": (
        rules, "believed_clock", lambda members, k: roster.kth_clock(members, 1)
    ),
    "every live learner gets the version": (
        merge_outcomes, "in_order", lambda members: [*members.values()][1:]
    ),
}  # fmt: skip
"""For each invariant: the place of a rule, and a replacement that breaks the invariant."""


@pytest.mark.parametrize("invariant", BROKEN)
def test_run_of_broken_rules_replays_exactly_and_is_judged(
    replay: Replay, run_dir: Path, invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tape and the rules that replay it agree, and both are wrong."""
    monkeypatch.setattr(*BROKEN[invariant])
    shutil.rmtree(run_dir)
    Played(run_dir, CONFIG.replace("[sync]", "[sync]\nquorum = 2")).to_the_end(24)
    code, out, err = replay()
    result = json.loads(out)
    assert (code, err, result["exact"], result["violations"]) == (1, "", True, 1)
    assert result["violated"].startswith(f"{invariant}: ")


def test_truncated_tape_is_replayed_up_to_its_end(replay: Replay, run_dir: Path) -> None:
    tape = run_dir / "tape-0.arrow"
    tape.write_bytes(tape.read_bytes()[: tape.stat().st_size * 2 // 3])
    assert "tape-0.arrow" in told(replay)["damage"]


def test_flipped_bit_in_the_tape_is_reported(replay: Replay, run_dir: Path) -> None:
    tape = run_dir / "tape-0.arrow"
    flip(tape, tape.stat().st_size * 2 // 3)
    assert "tape-0.arrow" in told(replay)["damage"]


def test_directory_without_a_tape_is_refused(replay: Replay, run_dir: Path) -> None:
    (run_dir / "tape-0.arrow").unlink()
    assert "has no tape" in refused(replay)


@pytest.mark.parametrize("damage", ["flip", "cut"])
@pytest.mark.parametrize("name", ["state.json", "fragments/f0000-g0-v00000000.safetensors"])
def test_damaged_file_is_reported(replay: Replay, run_dir: Path, name: str, damage: str) -> None:
    path = run_dir / name
    if damage == "flip":
        flip(path, path.stat().st_size * 9 // 10)
    else:
        path.write_bytes(path.read_bytes()[:-20])
    assert path.name in refused(replay)


def test_run_with_a_damaged_layout_is_replayed_from_its_copy(replay: Replay, run_dir: Path) -> None:
    (run_dir / "layout.json").write_bytes(b"{}")
    code, out, _ = replay()
    assert (code, json.loads(out)["exact"]) == (0, True)
    (run_dir / "layout-copy.json").unlink()
    assert "layout.json" in refused(replay)


def test_missing_fragment_is_reported(replay: Replay, run_dir: Path) -> None:
    (run_dir / "fragments" / "f0001-g0-v00000000.safetensors").unlink()
    assert "fragment 1 has lost its first version" in refused(replay)


def test_missing_or_damaged_contribution_is_reported(replay: Replay, run_dir: Path) -> None:
    first, *_, last = sorted((run_dir / "contributions" / "f0001").iterdir())
    flip(last, last.stat().st_size - 3)
    assert f"f0001/{last.name} is not as it was written" in refused(replay)
    first.unlink()
    assert f"f0001/{first.name} is not there" in refused(replay)


def test_damaged_summary_is_reported(replay: Replay, run_dir: Path) -> None:
    (run_dir / "summary.json").write_text('{"global_sha')
    assert "summary.json" in refused(replay)


def test_missing_or_broken_configuration_is_a_user_mistake(replay: Replay, run_dir: Path) -> None:
    (run_dir / "config.toml").write_text("[sync\n")
    code, out, err = replay()
    assert (code, json.loads(out)["error"]["kind"]) == (2, "mistake")
    assert "config.toml" in err
    (run_dir / "config.toml").unlink()
    assert replay()[0] == 2
