"""`bench faults` and `bench recovery` compute figures from a run's tape that can fail a goal."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from archipelago.lab.bench.child_run import ERR, ChildRun, started
from archipelago.lab.bench.faults import (
    PLANS,
    FaultWindow,
    LostMerges,
    advancing,
    compared,
    lost_of,
    plan_of,
)
from archipelago.lab.bench.goals import GOALS
from archipelago.lab.bench.recovery import between
from archipelago.lab.bench.stats import Median
from cluster.launch.chaos import ANY
from cluster.names import SHARD, SYNCER
from cluster.storage.playback import TapeRow
from coordinator.errors import RunFailed
from coordinator.protocol import (
    Arrived,
    Contribution,
    ContributionId,
    Event,
    Fragment,
    Incarnation,
    Island,
    Lease,
    Life,
    Merged,
    Progress,
    Reference,
    Report,
    Resume,
    ShardLost,
    Stop,
    Stored,
    Version,
)

F0, F1 = Fragment(0), Fragment(1)


def tape(*events: tuple[float, Event]) -> list[TapeRow]:
    return [TapeRow(seq, at_s, event, 0) for seq, (at_s, event) in enumerate(events)]


def v(number: int, generation: int = 0) -> Version:
    return Version(generation, number)


# --- the run that is broken ---------------------------------------------------------------------


def test_child_with_much_output_does_not_block(tmp_path: Path) -> None:
    """A pipe holds 64 KiB."""
    lines = 20_000
    script = (
        f"import sys\nfor n in range({lines}): print('x' * 9, file=sys.stderr)\n"
        "print('{\"merges\": 4}')"
    )
    process = started([sys.executable, "-c", script], os.environ, tmp_path)
    assert process.wait(60) == 0  # nothing has read its output
    run = ChildRun(process, tmp_path, tmp_path / "run", 0, dict(os.environ))
    summary, err = run.end()
    assert (summary, len(err)) == ({"merges": 4}, 10 * lines)


def test_child_that_fails_has_no_summary(tmp_path: Path) -> None:
    """The error object on standard output (`--json`) must not pass for figures."""
    command = [sys.executable, "-m", "archipelago", "run", "nowhere.toml", "--json"]
    process = started(command, os.environ, tmp_path)
    assert process.wait(60) == 2
    run = ChildRun(process, tmp_path, tmp_path / "run", 0, dict(os.environ))
    summary, err = run.end()
    assert summary == {}
    assert "nowhere.toml: no such file" in err


def test_child_that_does_not_end_is_killed(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a child inherits it
    try:
        process = started(["sh", "-c", "sleep 600; true"], os.environ, tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    (tmp_path / ERR).write_text("waiting for a shard")
    run = ChildRun(process, tmp_path, tmp_path / "run", 0, dict(os.environ))
    with pytest.raises(RunFailed, match=r"(?s)0\.2 s of SIGINT.*killed.*waiting for a shard"):
        run.end(0.2)
    assert process.returncode == -signal.SIGKILL
    assert run.end(0.2)[1] == "waiting for a shard", "it can be ended twice"


# --- lost merges --------------------------------------------------------------------------------


def made(number: int, p: Fragment = F0, generation: int = 0) -> list[tuple[float, Event]]:
    """Return the events of a version that is merged, stored and so published."""
    version = v(number, generation)
    return [(1.0, Merged(p, version)), (1.0, Stored(p, version, durable=True))]


def test_published_merges_that_stay_are_not_lost() -> None:
    assert lost_of(tape(*made(1), *made(2), *made(1, F1))) == LostMerges(0, 0)


def test_published_merges_missing_after_a_restart_are_lost() -> None:
    """The syncer restarts, and one of its shards has lost two versions of one fragment."""
    back = (2.0, Resume(1, (v(1), v(1))))
    rows = tape(*made(1), *made(2), *made(3), *made(1, F1), back, *made(2, generation=1))
    assert lost_of(rows) == LostMerges(2, 0)


def test_lost_merge_is_counted_once() -> None:
    back = [(2.0, Resume(generation, (v(1), v(0)))) for generation in (1, 2)]
    assert lost_of(tape(*made(1), *made(2), back[0], back[1])) == LostMerges(1, 0)


def test_unpublished_merge_is_lost_with_its_shard() -> None:
    rows = tape(
        *made(1),
        (1.0, Merged(F0, v(2))),
        (1.0, Merged(F1, v(1))),
        (2.0, ShardLost((F0,))),
        (3.0, ShardLost((F0,))),
    )
    assert lost_of(rows) == LostMerges(0, 1)


def test_unpublished_merge_is_lost_with_the_syncer() -> None:
    rows = tape(*made(1), (1.0, Merged(F0, v(2))), (2.0, Resume(1, (v(1), v(0)))))
    assert lost_of(rows) == LostMerges(0, 1)


# --- advancing islands -------------------------------------------------------------------------


def life(name: str, incarnation: int = 1) -> Life:
    return Life(Island(name), Incarnation(incarnation))


def report(name: str, steps: int, incarnation: int = 1) -> Report:
    return Report(life(name, incarnation), Progress(steps, steps, Lease(0)), step_s=1.0)


def arrived(name: str) -> Arrived:
    said = ContributionId(life(name), F0, 0, 1)
    progress = Progress(1, 1, Lease(0))
    return Arrived(Contribution(said, v(0), 0, 1, "L", progress, 1.0, 1, Reference(name)))


def test_advancing_counts_each_island_separately() -> None:
    """One of two islands stops half-way, which `uptime` would not show."""
    steps = range(1, 11)
    events: list[tuple[float, Event]] = [(0.0, arrived("a")), (0.0, arrived("b"))]
    events += [(float(n), report("a", n)) for n in steps]
    events += [(float(n), report("b", n)) for n in steps if n <= 5]
    events.sort(key=lambda each: each[0])
    rows = tape(*events, (10.0, Stop("over")), (12.0, report("a", 12)))
    assert advancing(rows) == pytest.approx((10 + 5) / 20)


def test_long_silence_is_not_advancing_and_new_lives_restart_counts() -> None:
    rows = tape(
        (0.0, arrived("a")),
        (0.0, report("a", 5)),
        (10.0, report("a", 6)),  # one step counts for at most three usual step times
        (19.0, report("a", 1, incarnation=2)),
        (20.0, report("a", 2, incarnation=2)),
    )
    assert advancing(rows) == pytest.approx((3 + 1 + 1) / 20)


# --- figures --------------------------------------------------------------------------------------


def window(
    merged_per_s: float, back_s: Sequence[float], hits: int, lost: LostMerges
) -> FaultWindow:
    told = {
        "recovery_s": list(back_s),
        "uptime": 1.0,
        "mean_participants": 3.0,
        "heldout_loss": 2.0,
        "faults": hits,
    }
    return FaultWindow(merged_per_s, 1.0, 100.0, told, hits, lost, advancing=0.9)


CALM = window(100.0, [], 0, LostMerges(0, 0))


def test_recovery_time_lowers_retained_and_possible() -> None:
    slow = window(60.0, [80.0, 80.0], 2, LostMerges(0, 0))  # of 4 x 100 island-seconds
    told = compared(4, [slow], [CALM])
    assert told["retained"] == pytest.approx(0.6)
    assert told["possible"] == pytest.approx(0.6)
    assert told["retained_of_possible"] == pytest.approx(1.0)
    assert told["islands_advancing"] == 0.9
    assert GOALS["faults"].keys() <= told.keys()


def test_pairs_have_intervals_and_counts_are_summed() -> None:
    broken = [window(rate, [10.0], 2, LostMerges(1, 2)) for rate in (90.0, 80.0, 95.0)]
    told = compared(4, broken, [CALM] * 3)
    assert (told["samples"], told["coverage"]) == (3, pytest.approx(0.75))
    assert (told["retained"], told["retained_low"], told["retained_high"]) == (0.9, 0.8, 0.95)
    assert (told["lost_merges"], told["unpublished_merges_lost"]) == (3, 6)
    assert (told["faults"], told["not_back"], told["recovery_s"]) == (6, 3, 10.0)


def test_islands_that_never_return_are_reported() -> None:
    told = compared(4, [window(90.0, [], 1, LostMerges(0, 0))], [CALM])
    assert (told["not_back"], told["recovery_s"]) == (1, None)


def test_plan_kills_in_turn_with_time_to_recover() -> None:
    assert plan_of(PLANS["islands"], 15.0, 60.0) == [(15.0, ANY), (30.0, ANY), (45.0, ANY)]
    services = plan_of(PLANS["islands, syncer, shard"], 15.0, 100.0)
    assert [whom for _, whom in services] == [SYNCER, ANY, SHARD, ANY, SYNCER]
    assert plan_of((), 15.0, 100.0) == []


def test_ratio_of_medians_has_the_widest_interval() -> None:
    back, cold = Median(9.0, 8.0, 12.0, 0.75, 3), Median(18.0, 16.0, 20.0, 0.9, 5)
    ratio = between(back, cold, lambda a, b: a / b)
    assert (ratio.value, ratio.low, ratio.high) == (0.5, 0.4, 0.75)
    assert (ratio.coverage, ratio.samples) == (0.75, 3)
    assert not math.isnan(ratio.low)
