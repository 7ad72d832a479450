"""What the benches of merge and wire print, on little work: keys, and what must hold of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cluster.bench_merge import Workload, merge
from cluster.bench_wire import message_bytes
from coordinator.codec import Wire, encode

ROOT = Path(__file__).parents[2]
ELEMENTS = 100_000
FRACTIONS = ("mean_fraction", "rda_fraction")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_merge_is_held_against_the_copy_beside_it(threads: int) -> None:
    workload = Workload(5, ELEMENTS, Wire.INT8, threads)
    figures = merge(workload, repeats=3, say=lambda line: None)
    assert (figures["threads"], figures["samples"], figures["wire"]) == (threads, 3, "int8")
    for name in ("memcpy_gb_s", "mean_gb_s", "rda_gb_s", "gate_gb_s", *FRACTIONS):
        value = figures[name]
        assert isinstance(value, float)
        assert value > 0
    for name in FRACTIONS:
        low, middle, high = (figures[f"{name}{end}"] for end in ("_low", "", "_high"))
        assert isinstance(low, float)
        assert isinstance(middle, float)
        assert isinstance(high, float)
        assert low <= middle <= high


def test_a_shard_takes_what_it_says_it_takes() -> None:
    """12 bytes a parameter, four differences and two contributions; in a process of its own, since
    memory that others have given back would be used again."""
    script = (
        "from cluster.bench_merge import Workload, Wire, memory\n"
        "print(json.dumps(memory(Workload(2, 4_000_000, Wire.INT4, 1))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import json\n{script}"], cwd=ROOT, capture_output=True, check=True
    )
    told, each = json.loads(done.stdout), Wire.INT4.bytes_of(ELEMENTS) / ELEMENTS
    assert told["shard_bytes_per_parameter"] == pytest.approx(12 + 4 * each)
    assert told["shard_in_flight_bytes_per_parameter"] == pytest.approx(12 + 6 * each)
    assert told["shard_process_bytes_per_parameter"] == pytest.approx(12 + 6 * each, rel=0.1)


def test_bytes_that_must_move_are_counted_as_agreed() -> None:
    moved = Workload(8, 1000, Wire.F32, 1).moved_bytes
    assert moved == {"memcpy": 8000, "mean": 48_000, "rda": 80_000, "gate": 32_000}


@pytest.mark.parametrize("wire", list(Wire))
def test_a_message_is_its_payload_and_little_more(wire: Wire) -> None:
    payload = encode(wire, np.ones(ELEMENTS, np.float32))
    for total in message_bytes(payload):
        assert payload.nbytes < total < payload.nbytes + 1000


@pytest.mark.parametrize(("every", "goal"), [(24, 130), (60, 300)])
def test_int4_moves_far_less_than_gradients_in_every_step(every: int, goal: int) -> None:
    """Each of eight members of a ring all-reduce of bf16 sends and receives 2 * 7 / 8 * 2 bytes."""
    up, down = message_bytes(encode(Wire.INT4, np.ones(ELEMENTS, np.float32)))
    assert every * 2 * (2 * 7 / 8 * 2) * ELEMENTS / (up + down) > goal
