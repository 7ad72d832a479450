"""A run that is trained again reads the leases of its tape, and its islands may need others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archipelago.lab.training import __main__ as command
from archipelago.lab.training.lease_source import GivenLeases
from archipelago.lab.training.retrain import train_again
from archipelago.lab.training.timing import Virtual
from cluster.config.load import parse
from cluster.workers.assembly import task_of
from coordinator.errors import UserMistake
from coordinator.protocol import Island, Lease
from tests.given import sums


def tables(text: Path) -> dict[str, Any]:
    return {
        "run": {"steps": 8},
        "task": {"preset": "byte-tiny"},
        "data": {"source": str(text), "window": 16, "lease_windows": 4},
        "islands": [{"group": "local", "count": 2, "batch_size": 4}],
    }


def test_island_reads_new_leases_after_those_of_its_tape(tmp_path: Path) -> None:
    task = task_of(parse(tables(sums(tmp_path)), origin="test"))
    wanted = task.stream(4)
    for number in range(12):
        wanted.add(Lease(number))
    batches = [wanted.next() for _ in range(12)]

    given = GivenLeases({Island("local-0"): [5, 2], Island("local-1"): [0]})
    read = dict[str, list[int]]()
    for island in ("local-0", "local-1", "local-9"):
        stream, read[island] = given.stream(Island(island), task.stream(4)), []
        for number in range(3):
            stream.add(Lease(10 + number))
            batch = stream.next()
            assert stream.cursor.number == 10 + number
            read[island] += [n for n, each in enumerate(batches) if np.array_equal(each, batch)]
    assert read == {"local-0": [5, 2, 6], "local-1": [0, 7, 8], "local-9": [9, 10, 11]}


def test_run_with_a_fault_of_the_syncer_is_refused(tmp_path: Path) -> None:
    made = tables(sums(tmp_path))
    made["faults"] = {"plan": [{"kind": "kill", "island": "syncer", "at_step": 2}]}
    config = parse(made, origin="test")
    (tmp_path / "config.toml").write_text(config.toml(), encoding="utf-8")
    with pytest.raises(UserMistake, match=r"virtual time has no process of the syncer"):
        train_again(tmp_path, Virtual())


def test_values_beside_a_run_directory_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(tmp_path), "run.steps=3"]) == 2
    assert "run.steps=3: a run is trained again as it was" in capsys.readouterr().err
