"""`bench overhead` computes its figures, and CPU seconds are read from the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from archipelago.lab.bench import procfs
from archipelago.lab.bench.baseline_actor import Counted
from archipelago.lab.bench.goals import GOALS
from archipelago.lab.bench.overhead import SETTINGS, OverheadWindow, compared, config_of, measured
from cluster.config.load import parse
from coordinator.codec import Wire
from coordinator.errors import RunFailed


def test_window_counts_whole_steps() -> None:
    """Two islands take 10 and 20 steps in 5 s of their time, with 6 CPU seconds in 4 s of clock."""
    looks = [
        (Counted(100, 50.0, 1.0), Counted(110, 55.0, 1.1)),
        (Counted(0, 0.0, 0.0), Counted(20, 5.0, 0.1)),
    ]
    window = measured(looks, used_s=6.0, seconds=4.0)
    assert window.steps_per_s == pytest.approx(2 + 4)
    assert window.cpu_s_per_step == pytest.approx(6 / (6 * 4))
    assert window.ours == pytest.approx(0.2 / 10)


def test_refuses_a_window_without_a_step() -> None:
    with pytest.raises(RunFailed, match="longer, with --for"):
        measured([(Counted(3, 1.0, 0.0), Counted(3, 1.0, 0.0))], 1.0, 1.0)


def test_pairs_are_compared_one_by_one() -> None:
    with_us = [
        OverheadWindow(9.0, 0.11, 0.01, 10, 0.5, 0.3),
        OverheadWindow(99.0, 0.22, 0.02, 20, 1.1, 0.5),
        OverheadWindow(0.9, 0.33, 0.03, 30, 1.3, 0.7),
    ]
    without = [
        OverheadWindow(10.0, 0.1, 0.0, 0, 0.1, 0.1),
        OverheadWindow(100.0, 0.2, 0.0, 0, 0.1, 0.1),
        OverheadWindow(1.0, 0.3, 0.0, 0, 0.1, 0.1),
    ]
    told = compared(with_us, without)
    assert told["samples"] == 3
    assert GOALS["overhead"].keys() <= told.keys()
    assert told["ratio"] == pytest.approx(0.9)
    assert (told["ratio_low"], told["ratio_high"]) == pytest.approx((0.9, 0.99))
    assert told["cpu_ratio"] == pytest.approx(1.1)
    assert told["thread_fraction"] == pytest.approx(0.02)
    assert told["syncer_ms_per_round"] == pytest.approx(40)
    assert told["shard_ms_per_round_low"] == pytest.approx(20)
    assert told["coverage"] == pytest.approx(0.75)


def test_refuses_a_window_without_a_merge() -> None:
    with pytest.raises(RunFailed, match="longer, with --for"):
        compared([OverheadWindow(9.0, 0.11, 0.01)], [OverheadWindow(10.0, 0.1, 0.0)])


def test_measures_the_goals_setting_and_the_default_setting() -> None:
    first, shipped = (config_of("byte-tiny", 2, ["sync.wire_up=f32"], each) for each in SETTINGS)
    sync = first.sync
    assert (sync.every, sync.fragments, sync.wire_up, sync.wire_down) == (24, 8, "f32", "int4")
    as_it_comes = parse({"islands": [{}], "task": {"preset": "byte-tiny"}}, origin="here")
    usual = as_it_comes.sync.model_copy(update={"wire_up": Wire.F32})
    assert shipped.sync == usual, "whatever is not set"
    assert [each.watched for each in SETTINGS] == [False, True]


def test_cpu_seconds_of_a_family_include_its_children() -> None:
    before = procfs.family(os.getpid())
    burn = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
    child = subprocess.Popen(
        [sys.executable, "-c", burn + "print('done', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"done\n"
        after = procfs.family(os.getpid())
        assert child.pid in after
        assert procfs.used_s(before, after) >= 0.15
        assert procfs.rss_bytes(child.pid) > 0
    finally:
        child.communicate(b"\n")


def test_ended_process_has_used_no_cpu() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert procfs.cpu_s(child.pid) == 0.0
    assert procfs.used_s({1: 5.0, 2: 1.0}, {2: 4.0, 3: 0.5}) == 3.5
    assert procfs.cpu_s(os.getpid()) <= time.process_time() + 1.0
