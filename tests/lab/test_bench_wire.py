"""The merge and wire benches print their keys, with values that satisfy invariants."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from archipelago.lab.bench.goals import GOALS
from archipelago.lab.bench.merge import _against_roofline, merge
from archipelago.lab.bench.merge_workload import Workload, _summing
from archipelago.lab.bench.stats import demo
from archipelago.lab.bench.wire import WireTraffic, message_bytes, moments_bytes_per_parameter
from coordinator.codec import Wire, encode
from coordinator.tiles import JOB

ROOT = Path(__file__).parents[2]
ELEMENTS = 100_000
PIECES = "_in_pieces"
FRACTIONS = (
    "mean_fraction", "rda_fraction", "mean_of_roofline", "rda_of_roofline",
    "mean_in_pieces_of_roofline", "rda_in_pieces_of_roofline",
)  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
def test_merge_is_compared_with_a_copy(threads: int) -> None:
    workload = Workload(5, ELEMENTS, Wire.INT8, threads, pieces=300)
    figures = merge(workload, repeats=3, say=lambda line: None)
    assert (figures["threads"], figures["samples"], figures["wire"]) == (threads, 3, "int8")
    assert figures["pieces"] == 300
    assert GOALS["merge"].keys() <= figures.keys()
    for name in ("memcpy_gb_s", "mean_gb_s", "rda_gb_s", "gate_gb_s", "roofline_gb_s", *FRACTIONS):
        value = figures[name]
        assert isinstance(value, float)
        assert value > 0
    for name in FRACTIONS:
        low, middle, high = (figures[f"{name}{end}"] for end in ("_low", "", "_high"))
        assert isinstance(low, float)
        assert isinstance(middle, float)
        assert isinstance(high, float)
        assert low <= middle <= high


@pytest.mark.long
def test_shard_needs_the_memory_it_reports() -> None:
    """A shard needs 12 bytes a parameter, eight differences and two contributions.

    It runs in a process of its own, because freed memory of others would be reused.
    """
    script = (
        "from archipelago.lab.bench.merge_memory import Workload, Wire, memory\n"
        "print(json.dumps(memory(Workload(2, 4_000_000, Wire.INT4, 1))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import json\n{script}"], cwd=ROOT, capture_output=True, check=True
    )
    told, each = json.loads(done.stdout), Wire.INT4.bytes_of(ELEMENTS) / ELEMENTS
    assert told["shard_bytes_per_parameter"] == pytest.approx(12 + 8 * each)
    assert told["shard_in_flight_bytes_per_parameter"] == pytest.approx(12 + 10 * each)
    assert told["shard_process_bytes_per_parameter"] == pytest.approx(12 + 10 * each, rel=0.1)


def test_moved_bytes_are_counted_by_convention() -> None:
    moved = Workload(8, 1000, Wire.F32, 1).moved_bytes
    assert moved == {"memcpy": 8000, "mean": 48_000, "rda": 80_000, "gate": 32_000}


def test_roofline_counts_every_stream() -> None:
    """Eight streams are read; the sum, master and momentum are each read and written.

    RDA reads three times, and the time of its gate counts as well.
    """
    workload = Workload(8, 10**9 // 4, Wire.F32, 1)
    assert workload.streams == {"sum": 10, "mean": 12, "rda": 28}
    names = ("mean", "rda", "gate")
    seconds = {
        "sum": [1.0],
        **{f"{name}{where}": [2.0] for name in names for where in ("", PIECES)},
    }
    told = _against_roofline(workload, seconds)
    assert told["roofline_gb_s"] == pytest.approx(10)
    assert told["mean_of_roofline"] == pytest.approx(6 / 10)
    assert told["rda_of_roofline"] == told[f"rda{PIECES}_of_roofline"] == pytest.approx(7 / 10)


def test_roofline_kernel_sums_all_streams() -> None:
    chance = np.random.default_rng(7)
    streams = chance.standard_normal((7, 100_001), np.float32)
    target = np.ones(100_001, np.float32)
    work = _summing(streams, target)
    for start in range(0, target.size, JOB):
        work(start)
    np.testing.assert_allclose(target, np.sum(streams, axis=0, dtype=np.float64), atol=1e-5)


@pytest.mark.parametrize(("pieces", "elements"), [(7, 100), (1, 5), (9, 4)])
def test_fragment_of_many_pieces_has_all_elements(pieces: int, elements: int) -> None:
    leaves = Workload(2, elements, Wire.F32, 1, pieces).leaves
    assert len(leaves) == min(pieces, elements)
    assert sum(size for leaf in leaves for size in leaf.shape) == elements


@pytest.mark.parametrize("wire", list(Wire))
def test_message_is_little_larger_than_its_payload(wire: Wire) -> None:
    payload = encode(wire, np.ones(ELEMENTS, np.float32))
    for total in message_bytes(payload):
        assert payload.nbytes < total < payload.nbytes + 1000


@pytest.mark.parametrize(
    ("wire", "every", "ratio"),
    [(Wire.INT4, 24, 158), (Wire.INT4, 60, 395), (Wire.BF16, 8, 14), (Wire.F32, 8, 7)],
)
def test_moves_fewer_bytes_than_gradients_at_every_step(wire: Wire, every: int, ratio: int) -> None:
    """Each of eight members of a ring all-reduce of bf16 sends and receives 2 * 7 / 8 * 2 bytes."""
    traffic = WireTraffic.of(np.ones(ELEMENTS, np.float32), wire, wire)
    told = traffic.all_reduce_ratio(every, 8)
    assert told == pytest.approx(
        every * 2 * (2 * 7 / 8 * 2) * ELEMENTS / (traffic.up_bytes + traffic.down_bytes)
    )
    assert told == pytest.approx(ratio, rel=0.02)


def test_syncer_link_carries_the_traffic_of_all_islands() -> None:
    """At the defaults the syncer's link has less than a ring member's traffic, except with 64."""
    traffic = WireTraffic.of(np.ones(ELEMENTS, np.float32), Wire.BF16, Wire.BF16)
    assert traffic.syncer_link_ratio(8, 8) == pytest.approx(14 / 8, rel=0.01)
    assert traffic.syncer_link_ratio(8, 64) < 0.3


def test_donated_moments_are_two_for_adamw_and_about_one_for_muon() -> None:
    def moments(kind: str) -> float:
        config = demo("byte-tiny", steps=1, seed=0, overrides=[f"optimizer.kind={kind}"])
        return moments_bytes_per_parameter(config)

    assert moments("adamw") == pytest.approx(8, rel=0.01)
    assert 4 < moments("muon") < 6
