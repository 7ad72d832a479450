"""`archipelago verify` finds every kind of damage, and only damage.

A check that always approved, or that looked only at the newest files, fails at some bit; one that
always complained fails at the sound runs.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cluster.launch.verify import verify
from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.fragments import stored_versions
from cluster.storage.playback import read_tape
from cluster.storage.segments import segments
from coordinator.errors import UserMistake
from tests.cluster import played
from tests.cluster.played import LAYOUT, Played
from tests.cluster.restored import F, copy_of, harms, killed, kind_of
from tests.cluster.test_corruption import short

__all__ = ["short"]  # a fixture of every test here: short segments, no fsync

WITHOUT_DIGEST = {
    "config.toml",
    "notes.jsonl",
    "vitals.json",
    "live.json",
    "owner",
    "metrics.jsonl",
}
"""Files in which a flipped bit may go unnoticed: they have no digest, and no model depends on them.

`live.json` and owner files are of a process that is gone. A bit of `config.toml` may be another
valid value.
"""


@pytest.mark.parametrize("kind", ["at", "behind", "second"])
def test_a_killed_run_verifies(tmp_path: Path, kind: str) -> None:
    killed(tmp_path / "run", kind)
    found = verify(tmp_path / "run")
    assert found.problems == []
    assert found.checked["fragments"] >= 4
    assert found.checked["events"] > 50
    assert found.checked["snapshots"] >= 2
    assert found.checked["restart"] == 1


def test_an_ended_run_verifies_with_its_contributions(tmp_path: Path) -> None:
    Played(tmp_path / "run", played.CONFIG).to_the_end(16, 8)
    found = verify(tmp_path / "run")
    assert found.ok, found.problems
    assert found.checked["contributions"] > 4
    assert not found.notes


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="not the directory of a run"):
        verify(tmp_path)


@pytest.mark.parametrize("kind", ["at", "second"])
def test_every_damage_to_a_file_with_a_digest_is_found(tmp_path: Path, kind: str) -> None:
    """Each file is truncated, flipped in one bit, deleted and swapped, as by a bad disk."""
    killed(tmp_path / "run", kind)
    chance = random.Random(kind)
    missed: list[str] = []
    last = segments(Folder(tmp_path / "run"))[-1].name
    for number, (harm, apply) in enumerate(harms(tmp_path / "run", chance)):
        at = copy_of(tmp_path / "run", tmp_path / f"harmed-{number}")
        apply(at)
        if {kind_of(name) for name in harm.files} & WITHOUT_DIGEST:
            continue
        if harm.how == "deleted" and not needed(harm.files[0], last):
            continue
        found = (at / "config.toml").exists() and verify(at)
        if found and found.ok and not (last in harm.files or same_log(tmp_path / "run", at)):
            missed.append(str(harm))
    assert not missed, missed


def same_log(run_dir: Path, at: Path) -> bool:
    """Return whether all rows are as before: padding between them has no meaning."""
    files = {each.name: each.read_bytes() for each in run_dir.glob("*.arrow")}
    if files == {each.name: each.read_bytes() for each in at.glob("*.arrow")}:
        return False  # the damage is to another file
    try:
        logs = [read_tape(Folder(each), LAYOUT.fingerprint).events for each in (run_dir, at)]
    except Damaged:
        return False
    return logs[0] == logs[1]


def needed(name: str, last_segment: str) -> bool:
    """Return whether a run cannot do without this file.

    It can do without the memory of its fleet, its identity, and any one snapshot or version, since
    there are others. The end of a log may never have been written.
    """
    spare = ("fleet.json", "identity.json", "state.json", "layout-copy.json", last_segment)
    return name not in spare and kind_of(name) not in ("states", "fragments")


def test_a_run_without_a_usable_version_of_a_fragment_does_not_verify(tmp_path: Path) -> None:
    killed(tmp_path / "run", "at")
    depot = Folder(tmp_path / "run")
    for each in stored_versions(depot)[F[1]][1:]:
        depot.remove(each.name)
    found = verify(tmp_path / "run")
    assert any("fragment 1" in problem for problem in found.problems)


def test_the_end_of_a_log_that_a_crash_cut_off_is_a_note(tmp_path: Path) -> None:
    """In a run that has ended it is a problem, because the log was closed."""
    run = Played(tmp_path / "run", played.CONFIG)
    run.train(9, 8)
    run.close()
    last = tmp_path / "run" / segments(Folder(tmp_path / "run"))[-1].name
    last.write_bytes(last.read_bytes()[:-30])
    found = verify(tmp_path / "run")
    assert (found.problems, len(found.notes)) == ([], 1)
    (tmp_path / "run" / "summary.json").write_text("{}")
    assert not verify(tmp_path / "run").ok
