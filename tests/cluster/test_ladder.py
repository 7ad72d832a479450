"""Tests of the ladder: kept states stay, and a run goes back to one of them exactly."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.load import parse
from cluster.storage import ladder
from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.fragments import Arrays, fragment_name, stored_versions
from cluster.storage.ladder import (
    DAY_S,
    HOUR_S,
    Ladder,
    LadderPolicy,
    ask_to_go_back,
    asked_to_go_back,
    due,
    expired,
    load_rung,
    rungs_of,
    set_aside,
)
from cluster.storage.rungs import Rung, versions_of
from cluster.storage.snapshots import load_snapshot
from coordinator.errors import UserMistake
from coordinator.protocol import Fragment, Version
from coordinator.state import State
from tests.cluster.played import LAYOUT, Played
from tests.cluster.restored import CONFIG, Again, beside

P = (Fragment(0), Fragment(1))
HOURLY = LadderPolicy(hourly=3, daily=0)


# --- which states are kept ------------------------------------------------------------------------


def at(hours: float, t: int = 0) -> Rung:
    return Rung(t or int(hours * 100), int(hours * HOUR_S))


@pytest.mark.parametrize(
    ("rungs", "hours", "policy", "expected"),
    [
        ([], 0.0, LadderPolicy(0, 0), False),
        ([], 0.0, LadderPolicy(1, 0), True),
        ([at(1.1)], 1.9, LadderPolicy(1, 0), False),
        ([at(1.1)], 2.0, LadderPolicy(1, 0), True),
        ([at(1.1)], 23.9, LadderPolicy(0, 1), False),
        ([at(1.1)], 24.0, LadderPolicy(0, 1), True),
    ],
)
def test_a_state_is_due_once_an_hour_or_a_day(
    rungs: list[Rung], hours: float, policy: LadderPolicy, expected: bool
) -> None:
    assert due(rungs, hours * HOUR_S, policy) == expected


def test_first_state_of_each_of_the_last_hours_and_days_stays() -> None:
    rungs = [at(hour) for hour in (1, 2, 3, 25, 26, 27, 27.5, 28)]
    dropped = expired(rungs, LadderPolicy(hourly=2, daily=2))
    assert [each.at_s / HOUR_S for each in dropped] == [2, 3, 26, 27.5]
    assert expired(rungs, LadderPolicy(0, 0)) == rungs


@given(
    st.lists(st.integers(0, 40 * DAY_S), max_size=60, unique=True),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_states_that_are_kept_are_few_and_stay_kept(
    times: list[int], hourly: int, daily: int
) -> None:
    policy, rungs = LadderPolicy(hourly, daily), list[Rung]()
    for time_s in sorted(times):
        if due(rungs, time_s, policy):
            rungs.append(Rung(time_s, time_s))
        gone = expired(rungs, policy)
        rungs = [each for each in rungs if each not in gone]
        assert expired(rungs, policy) == []
    assert len(rungs) <= hourly + daily


def test_state_of_this_hour_stays_after_the_clock_was_set_back() -> None:
    """Each new state was once dropped at once, until the clock had caught up."""
    rungs, policy = [at(hour, t=hour) for hour in (101, 102, 103)], LadderPolicy(2, 2)
    for hour in (50, 51, 52):
        assert due(rungs, hour * HOUR_S, policy)
        rungs.append(at(hour, t=hour + 100))
        gone = expired(rungs, policy, hour * HOUR_S)
        rungs = [each for each in rungs if each not in gone]
        assert rungs[-1] == at(hour, t=hour + 100)
    assert [each.at_s / HOUR_S for each in rungs] == [101, 50, 51, 52]


@given(st.lists(st.integers(0, 9 * DAY_S), max_size=40), st.integers(0, 3), st.integers(0, 3))
def test_state_that_was_just_kept_stays_whatever_the_clock_does(
    times: list[int], hourly: int, daily: int
) -> None:
    policy, rungs = LadderPolicy(hourly, daily), list[Rung]()
    for t, time_s in enumerate(times):
        is_due = due(rungs, time_s, policy)
        rungs += [Rung(t, time_s)] * is_due
        gone = expired(rungs, policy, time_s)
        rungs = [each for each in rungs if each not in gone]
        assert not is_due or rungs[-1].t == t
        assert len(rungs) <= hourly + daily


# --- a run and its files --------------------------------------------------------------------------


class Climbed:
    """A run that kept the state of step `t`, trained far beyond it, and was killed."""

    def __init__(self, run_dir: Path) -> None:
        self.run = Played(run_dir, CONFIG)
        beside(run_dir)
        self.depot = Folder(run_dir)
        self.ladder = Ladder(self.depot, HOURLY)
        self.run.train(13)
        self.state = self.keep(1.0)
        self.t = self.state.t
        self.wanted = {p: each.version for p, each in enumerate(self.state.fragments)}
        for hour in (2.0, 3.0):
            self.run.train(self.run.state.t + 24, 8)
            self.keep(hour)
        self.run.train(self.run.state.t + 9)
        self.run.keep_snapshot()
        self.run.notes.flush()
        assert self.run.state.t > self.t + 40

    def keep(self, hours: float) -> State:
        self.run.keep_snapshot()
        kept = load_snapshot(self.depot, LAYOUT.fingerprint)
        assert kept is not None
        self.ladder.look(kept, LAYOUT.fingerprint, hours * HOUR_S)
        return kept.state

    def expected(self, p: Fragment) -> Arrays:
        return self.run.history[p, self.wanted[p]]

    def back(self) -> Again:
        return Again(self.run.run_dir, self.run)


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> Climbed:
    return Climbed(tmp_path_factory.mktemp("ladder") / "run")


@pytest.fixture
def copied(climbed: Climbed, tmp_path: Path) -> Climbed:
    """Return the same run in another folder, which may be changed."""
    there = Climbed.__new__(Climbed)
    there.__dict__ |= climbed.__dict__
    run = Played.__new__(Played)
    run.__dict__ |= climbed.run.__dict__
    run.run_dir = there_dir = tmp_path / "run"
    shutil.copytree(climbed.run.run_dir, there_dir)
    there.run, there.depot = run, Folder(there_dir)
    there.ladder = Ladder(there.depot, HOURLY)
    return there


def test_versions_of_kept_states_stay_beside_the_newest(climbed: Climbed) -> None:
    stored = stored_versions(climbed.depot)
    for p in P:
        numbers = [each.version.number for each in stored[p]]
        newest = climbed.run.state.fragments[p].version.number
        assert numbers[0] == 0
        assert climbed.wanted[p].number in numbers
        assert numbers[-2:] == [newest - 1, newest]
        assert len(numbers) <= 1 + 3 + 2, "the first, the kept ones, and the two newest"
    assert next(rung.t for rung in rungs_of(climbed.depot)) == climbed.t


def test_run_goes_back_to_the_kept_state_exactly(copied: Climbed) -> None:
    abandoned, newest = copied.run.state, stored_versions(copied.depot)
    ask_to_go_back(copied.depot, copied.t)
    again = copied.back()
    assert again.back.state == copied.state
    assert again.found == copied.wanted
    for p in P:
        for name in ("master", "momentum", "public"):
            found, expected = getattr(again.recovered[p], name), getattr(copied.expected(p), name)
            assert np.array_equal(found, expected), f"{name} of fragment {p}"
    assert again.merges_lost == 0
    assert f"went back to t {copied.t}" in again.damage
    (folder,) = copied.depot.names("aside")
    aside = {*copied.depot.names(f"aside/{folder}")}
    for p in P:
        last = newest[p][-1].name.rpartition("/")[2]
        assert last in aside, "the newest version is not lost"
        assert stored_versions(copied.depot)[p][-1].version == copied.wanted[p]
    assert "state.json" in aside
    (copied.run.run_dir / "moved").mkdir()
    shutil.copy(copied.run.run_dir / "aside" / folder / "state.json", copied.run.run_dir / "moved")
    left = load_snapshot(Folder(copied.run.run_dir / "moved"), LAYOUT.fingerprint)
    assert left is not None
    assert left.state == abandoned


def test_run_trains_on_and_later_resumes_do_not_go_back_again(copied: Climbed) -> None:
    ask_to_go_back(copied.depot, copied.t)
    again = copied.back()
    again.goes_on()
    reached = again.state.t
    aside = copied.depot.names("aside")
    third = Again(copied.run.run_dir, again)
    assert third.back.state.t == reached > copied.t
    assert third.damage == ""
    assert copied.depot.names("aside") == aside
    third.goes_on()


def test_crash_before_the_first_snapshot_costs_nothing(copied: Climbed) -> None:
    """The log of the new generation begins at the kept state, and the old one ends there."""
    ask_to_go_back(copied.depot, copied.t)
    again = copied.back()
    again.train(again.state.t + 5)
    again.close()
    reached = again.state.t
    third = Again(copied.run.run_dir, again)
    assert third.back.state.t == reached
    assert third.merges_lost == 0


def test_setting_aside_may_be_repeated(copied: Climbed) -> None:
    ask_to_go_back(copied.depot, copied.t)
    rung = asked_to_go_back(copied.depot)
    assert rung is not None
    kept, versions = load_rung(copied.depot, rung, LAYOUT.fingerprint)
    assert [*versions] == [copied.wanted[p] for p in P]
    set_aside(copied.depot, rung, kept, LAYOUT.fingerprint)
    (folder,) = copied.depot.names("aside")
    first = {
        n: copied.depot.read(f"aside/{folder}/{n}") for n in copied.depot.names(f"aside/{folder}")
    }
    again = copied.back()
    assert again.found == copied.wanted
    assert copied.depot.names("aside") == [folder]
    for name, content in first.items():
        assert copied.depot.read(f"aside/{folder}/{name}") == content


def test_damaged_version_of_a_kept_state_refuses_and_moves_nothing(copied: Climbed) -> None:
    name = fragment_name(P[1], copied.wanted[P[1]])
    copied.depot.write(name, copied.depot.read(name)[:-3])
    ask_to_go_back(copied.depot, copied.t)
    with pytest.raises(Damaged, match="fragment 1"):
        copied.back()
    assert copied.depot.names("aside") == []
    assert copied.depot.has("state.json")


def test_step_that_is_not_kept_is_refused_with_those_that_are(copied: Climbed) -> None:
    with pytest.raises(UserMistake, match=f"keeps no state of t 7; kept are {copied.t} ") as error:
        ask_to_go_back(copied.depot, 7)
    assert "1970-01-01 01:00 UTC" in str(error.value)
    assert not copied.depot.has(ladder.FROM_STEP)
    ask_to_go_back(copied.depot, copied.t)
    ask_to_go_back(copied.depot, None)
    assert asked_to_go_back(copied.depot) is None, "a later resume without --from"


def test_state_whose_version_was_deleted_meanwhile_is_not_kept(copied: Climbed) -> None:
    kept = load_snapshot(copied.depot, LAYOUT.fingerprint)
    assert kept is not None
    copied.ladder.look(kept, LAYOUT.fingerprint, 4.0 * HOUR_S)
    (rung,) = [each for each in rungs_of(copied.depot) if each.at_s == 4 * HOUR_S]
    copied.depot.remove(fragment_name(P[0], versions_of(copied.depot, rung)[0]))
    copied.ladder.look(kept, LAYOUT.fingerprint, 4.1 * HOUR_S)
    now = [each for each in rungs_of(copied.depot) if each.at_s >= 4 * HOUR_S]
    assert rung not in now
    assert all(
        versions_of(copied.depot, each)[0] < versions_of(copied.depot, now[0])[0] or each == now[0]
        for each in now
    )


def test_untrained_state_is_not_kept(tmp_path: Path) -> None:
    run = Played(tmp_path / "run", CONFIG)
    run.keep_snapshot()
    depot = Folder(tmp_path / "run")
    kept = load_snapshot(depot, LAYOUT.fingerprint)
    assert kept is not None
    Ladder(depot, HOURLY).look(kept, LAYOUT.fingerprint, 0.0)
    assert depot.names("ladder") == []


def test_old_states_give_their_versions_up(copied: Climbed) -> None:
    kept = load_snapshot(copied.depot, LAYOUT.fingerprint)
    assert kept is not None
    for hours in (4.0, 5.0, 6.0):
        copied.ladder.look(kept, LAYOUT.fingerprint, hours * HOUR_S)
    assert [rung.at_s // HOUR_S for rung in rungs_of(copied.depot)] == [4, 5, 6]
    ask_to_go_back(copied.depot, rungs_of(copied.depot)[-1].t)
    again = copied.back()
    again.goes_on()
    for p in P:
        numbers = [each.version for each in stored_versions(copied.depot)[p]]
        assert copied.wanted[p] not in numbers
        assert Version(0, 0) in numbers


def test_ladder_is_refused_where_there_are_no_fragments() -> None:
    with pytest.raises(UserMistake, match=r"durability\.keep_hourly: has no effect"):
        parse(
            {
                "task": {"preset": "byte-tiny"},
                "run": {"mode": "data-parallel"},
                "islands": [{"count": 2}],
                "durability": {"keep_hourly": 2},
            }
        )
