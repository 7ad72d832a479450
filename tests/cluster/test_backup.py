"""A backup that is taken while the run continues verifies, and resumes with the run's contents.

The run trains, takes snapshots, and is restarted between any two reads of the copy. A copy in
another order (log first, or versions only once) has no version for some fragment, or versions that
are later than its log; both fail here.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from cluster.launch.backup import backup, whole_length
from cluster.launch.verify import verify
from cluster.storage.depot import Depot, Grown
from cluster.storage.folder import Folder
from cluster.storage.segments import segments
from coordinator.errors import RunFailed, UserMistake
from coordinator.protocol import Report
from tests.cluster.played import Played
from tests.cluster.restored import CONFIG, Again, F, beside, killed
from tests.cluster.test_corruption import short

__all__ = ["short"]  # a fixture of every test here: short segments, no fsync


class Training(Played):
    """A run that trains a few steps at each call."""

    def __init__(self, run_dir: Path, config: str = CONFIG) -> None:
        super().__init__(run_dir, config)
        beside(run_dir)
        self.train(9, 4)
        self._step = 9

    def goes_on(self, steps: int, *, snapshot: bool) -> None:
        for _ in range(steps):
            self._step += 1
            for life in self.lives:
                self._steps[life] = self._step
                self.feed(Report(life, self._progress(life), 1.0))
        self._tape.sync()
        if snapshot:
            self.keep_snapshot()


class Moving(Folder):
    """The depot of a live run, which trains before each read of the copy."""

    __slots__ = ("before_read",)

    def read(self, name: str) -> bytes:
        self.before_read()  # type: ignore[attr-defined]
        return super().read(name)

    def grown(self, name: str, start: int = 0) -> Grown:
        self.before_read()  # type: ignore[attr-defined]
        return super().grown(name, start)


def moving(run_dir: Path, before_read: object) -> Depot:
    depot = Moving(run_dir)
    object.__setattr__(depot, "before_read", before_read)
    return depot


def resumed(copy: Path, run: Played) -> Again:
    """Resume a copy, and check each fragment against what the run had published."""
    again = Again(copy, run)
    for p in F:
        published = run.history[p, again.found[p]]
        assert np.array_equal(again.recovered[p].public, published.public)
    return again


@pytest.mark.parametrize("seed", range(12))
def test_a_backup_of_a_live_run_resumes(tmp_path: Path, seed: int) -> None:
    """Every other run merges so fast that its versions are deleted while they are read."""
    chance, pace = random.Random(seed), (0, 0, 1, 3, 8) if seed % 2 else (0, 0, 0, 0, 1)
    run = Training(tmp_path / "run")
    begun = run.state.t

    def goes_on() -> None:
        steps = chance.choice(pace)
        run.goes_on(steps, snapshot=steps > 0 and chance.random() < 0.3)

    made = backup(tmp_path / "run", tmp_path / "copy", moving(tmp_path / "run", goes_on))
    assert run.state.t > begun, "the run trained meanwhile"
    assert made.t is not None
    assert begun <= made.t <= run.state.t
    assert verify(tmp_path / "copy").problems == []
    again = resumed(tmp_path / "copy", run)
    assert again.state.t == made.t
    assert again.damage in ("", None)
    assert again.merges_lost == made.merges_lost
    assert seed % 2 or made.merges_lost == 0
    again.goes_on()


def test_a_syncer_that_is_restarted_meanwhile_makes_the_copy_begin_again(tmp_path: Path) -> None:
    run = killed(tmp_path / "run", "at")
    run.close()
    lives: list[Played] = [run]

    def restarts() -> None:
        if len(lives) < 3:
            lives.append(Again(tmp_path / "run", lives[-1]))
            lives[-1].train(lives[-1].state.t + 9, 4)

    backup(tmp_path / "run", tmp_path / "copy", moving(tmp_path / "run", restarts))
    assert len(lives) == 3
    history = {key: each for life in lives for key, each in life.history.items()}
    again = Again(tmp_path / "copy", lives[-1])
    for p in F:
        assert np.array_equal(again.recovered[p].public, history[p, again.found[p]].public)
    assert again.state.generation >= 3


def test_a_copy_has_no_owner_and_its_own_store(tmp_path: Path) -> None:
    """The owner, the address and the token stay behind, and the durable store is the folder."""
    killed(tmp_path / "run", "at").close()
    backup(tmp_path / "run", tmp_path / "copy")
    names = {each.name for each in (tmp_path / "copy").iterdir()}
    assert not {name for name in names if name.startswith("owner")} | (names & {"live.json"})
    assert {"config.toml", "layout.json", "state.json", "fleet.json", "fragments"} <= names


def test_the_source_is_not_changed(tmp_path: Path) -> None:
    killed(tmp_path / "run", "at").close()

    def contents() -> dict[str, bytes]:
        files = (each for each in (tmp_path / "run").rglob("*") if each.is_file())
        return {str(each): each.read_bytes() for each in files}

    before = contents()
    backup(tmp_path / "run", tmp_path / "copy")
    assert contents() == before


def test_a_damaged_run_is_not_backed_up(tmp_path: Path) -> None:
    killed(tmp_path / "run", "at").close()
    fragment = max((tmp_path / "run" / "fragments").iterdir())
    fragment.write_bytes(fragment.read_bytes()[:-1] + b"\0\1")
    with pytest.raises(RunFailed, match=fragment.name):
        backup(tmp_path / "run", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    killed(tmp_path / "run", "at").close()
    (tmp_path / "copy").mkdir()
    with pytest.raises(UserMistake, match="exists"):
        backup(tmp_path / "run", tmp_path / "copy")


def test_a_segment_is_cut_at_its_last_whole_message(tmp_path: Path) -> None:
    run = Training(tmp_path / "run")
    run.goes_on(3, snapshot=False)
    depot = Folder(tmp_path / "run")
    content = depot.read(segments(depot)[-1].name)
    assert whole_length(content) == len(content)
    lengths = {whole_length(content[:length]) for length in range(len(content) - 200, len(content))}
    assert max(lengths) < len(content)
    for length in lengths:
        assert whole_length(content[:length]) == length
