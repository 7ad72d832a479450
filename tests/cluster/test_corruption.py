"""Tests of damage to single files of a run, followed by a resume.

The damage costs no more than what is younger than the newest snapshot, or the resume is refused
with a message. Nothing trained is ever deleted.

A product that always refused, one that took the initial weights, and one that took the right
version numbers with other contents would each fail here. Whether a refusal is allowed follows from
the damage alone, and contents are compared with what the run had in memory when it published them.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.fragments import fragment_name, stored_versions
from coordinator.errors import ArchipelagoError
from coordinator.protocol import Fragment, Version
from coordinator.state import State
from tests.cluster.played import Played
from tests.cluster.restored import Again, F, Harm, copy_of, harms, killed, kind_of
from tests.given import first_of

KEPT = 2
"""The number of retained versions of each fragment: `durability.keep_snapshots`."""
NEEDED = ("config.toml",)
"""Files that no other file can stand in for."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seal a segment at every snapshot, and skip fsync because no machine crashes here."""
    monkeypatch.setattr("cluster.storage.tape.SEGMENT_BYTES", 1)
    monkeypatch.setattr("os.fsync", id)


def fragments_in(run_dir: Path, harm: Harm | None = None) -> set[str]:
    """Return the sha256 of each trained fragment file that the damage did not touch."""
    touched = () if harm is None else harm.files
    files = [run_dir / "fragments" / name for name in os.listdir(run_dir / "fragments")]
    trained = [each for each in files if "-g0-v00000000" not in each.name]
    mine = [each for each in trained if f"fragments/{each.name}" not in touched]
    return {hashlib.sha256(each.read_bytes()).hexdigest() for each in mine}


def newest_segment(run_dir: Path) -> str:
    """Return the name of the log's last segment, such as tape-1-000000000238.arrow."""
    names = [each.name for each in run_dir.glob("tape-*.arrow")]
    return max(names, key=lambda name: [*map(int, name[5:-6].split("-"))])


class Case:
    """A killed run, and the state that its undamaged directory comes back with."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind, self.run_dir = kind, folder / kind
        self.run: Played = killed(folder / f"{kind}-alive", kind)
        copy_of(self.run.run_dir, self.run_dir)
        self.run.close()
        whole = Again(copy_of(self.run_dir, folder / f"{kind}-whole"), self.run)
        assert (whole.damage, whole.merges_lost) == ("", 0)
        assert whole.found == {p: self.run.state.fragments[p].version for p in F}
        self.end: State = whole.back.state
        self.check_contents(whole)
        whole.close()
        assert self.run.kept is not None
        self.snapshot: State = self.run.kept

    def check_contents(self, again: Again) -> None:
        """Compare the recovered arrays, bit for bit, with those published under these versions."""
        for p, version in again.found.items():
            wanted = self.run.history[p, version]
            for name in ("master", "momentum", "public"):
                mine = getattr(again.recovered[p], name)
                np.testing.assert_array_equal(mine, getattr(wanted, name), f"{name} of {p}")

    def intact(self, p: Fragment, harm: Harm) -> list[Version]:
        """Return the retained versions of a fragment that were not touched, oldest first."""
        retained = self.stored(p)[-KEPT:]
        return [each for each in retained if fragment_name(p, each) not in harm.files]

    def stored(self, p: Fragment) -> list[Version]:
        """Return the versions that the killed run has left, oldest first."""
        files = stored_versions(Folder(self.run_dir))[p]
        return [each.version for each in files if not each.orphan]

    def resumed(self, run_dir: Path) -> Again | ArchipelagoError:
        """Return the resumed run, or the reason of a refusal.

        Any other exception fails the test.
        """
        try:
            return Again(run_dir, self.run)
        except ArchipelagoError as error:
            return error

    def check(self, run_dir: Path, harm: Harm) -> str:
        """Resume, and check the result. Returns the name of the outcome."""
        before = fragments_in(run_dir, harm)
        again = self.resumed(run_dir)
        if isinstance(again, ArchipelagoError):
            assert fragments_in(run_dir) >= before, "a refusal deletes nothing"
            assert self.may_be_refused(harm), f"refused: {again}"
            named = any(name.rpartition("/")[2] in str(again) for name in harm.files)
            offers = isinstance(again, Damaged) and "stored are" in str(again)
            other = "was configured otherwise" in str(again) and "config.toml" in harm.files
            assert named or offers or other, f"the message lacks the cause: {again}"
            return self.from_stored(run_dir, harm, again)
        assert fragments_in(run_dir) >= before, "nothing is deleted at once"
        self.check_contents(again)
        costs = self.check_costs(again, harm)
        again.close()
        twice = Again(run_dir, self.run)  # the first one died before it had a snapshot
        assert twice.found == again.found
        assert twice.back.state.t == again.state.t
        self.check_contents(twice)
        twice.goes_on()
        return "it costs something" if costs else "it costs nothing"

    def check_costs(self, again: Again, harm: Harm) -> bool:
        """Return whether anything is gone; check that it is no more than allowed, and reported."""
        kinds = {kind_of(name) for name in harm.files}
        log_is_whole = not kinds & {"tape"} or not kinds & {"tape", "state.json", "states"}
        least = self.end if log_is_whole else self.snapshot
        state = again.back.state
        assert state.t >= least.t
        costs = state.t < self.end.t
        for p in F:
            version, intact = again.found[p], self.intact(p, harm)
            assert version in intact, "what is recovered is retained, and was not touched"
            touched = len(intact) < KEPT
            assert version >= (intact[-1] if touched else least.fragments[p].version)
            costs |= version < self.end.fragments[p].version
            passed = [v for v in self.stored(p) if version < v <= self.end.fragments[p].version]
            for name in {fragment_name(p, v) for v in passed} & {*harm.files}:
                gone = harm.how == "deleted"
                assert gone or name in again.damage, "what is passed over is named"
        loses_versions = any(v < self.end.fragments[p].version for p, v in again.found.items())
        if loses_versions or (costs and not self.is_cut_between_records(harm)):
            assert again.damage or again.merges_lost, "the lost part is reported"
        return costs

    def is_cut_between_records(self, harm: Harm) -> bool:
        """Return whether the newest log segment ends where a record ends.

        Such a log is that of a process which died before it wrote the rest, so nothing shows
        that there was more. A copy of the damaged run's directory is not needed for this: the bytes
        that are left are the first ones of the undamaged file.
        """
        (name, *others), kept = harm.files, harm.how.removeprefix("truncated to ")
        if others or not kept.isdecimal() or name != newest_segment(self.run_dir):
            return False
        left = (self.run_dir / name).read_bytes()[: int(kept)]
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(left))
        try:
            while True:
                messages.read_next_message()
        except StopIteration:
            return True
        except (OSError, pa.ArrowInvalid):
            return False

    def may_be_refused(self, harm: Harm) -> bool:
        """Return whether this damage leaves too little to resume from; only the files decide."""
        kinds = {kind_of(name) for name in harm.files}
        if kinds & {*NEEDED} or any(not self.intact(p, harm) for p in F):
            return True
        if "tape" not in kinds:
            return False
        return self.kind != "at" or bool(kinds & {"state.json", "states"})

    def from_stored(self, run_dir: Path, harm: Harm, error: ArchipelagoError) -> str:
        """Resume from what is stored, where the refusal offers it and a version is intact."""
        if "--resume --from-stored" not in str(error):
            return "refused"
        if any(not self.intact(p, harm) for p in F):
            with pytest.raises(Damaged, match="no good version"):
                Again(run_dir, self.run, from_stored=True)
            return "refused"
        again = Again(run_dir, self.run, from_stored=True)
        self.check_contents(again)
        assert again.found == {p: self.intact(p, harm)[-1] for p in F}
        if not {kind_of(name) for name in harm.files} & {"state.json", "states"}:
            assert again.back.state.t >= self.snapshot.t
        assert "--from-stored" in again.damage
        again.goes_on()
        return "refused, and resumed from what is stored"


@pytest.mark.parametrize("kind", first_of(["at", "behind", "second"]))
def test_single_damage_costs_at_most_what_follows_the_newest_snapshot(
    tmp_path: Path, kind: str
) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance, case = random.Random(seed), Case(tmp_path, kind)
    came: Counter[str] = Counter()
    for number, (harm, do) in enumerate(harms(case.run_dir, chance)):
        run_dir = copy_of(case.run_dir, tmp_path / f"{kind}-{number}")
        do(run_dir)
        try:
            came[case.check(run_dir, harm)] += 1
        except BaseException:
            print(f"{kind}: {harm}")
            raise
    print(dict(came))
    assert came.total() >= 60
    assert came["it costs nothing"] > came["refused"]
    assert came["it costs something"] >= 4, "each newest fragment that is gone costs a version"
    assert came["refused"] >= 4
    if kind != "at":
        assert came["refused, and resumed from what is stored"] >= 1
