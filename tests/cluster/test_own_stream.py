"""A data source of a user's own is tried when a run starts, before anything else does."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from cluster.config.load import read
from cluster.launch.preflight import enter
from coordinator.errors import UserMistake

MODULE = """from dataclasses import replace

from archipelago.examples import generated_data
from archipelago.examples.generated_data import Generated


class Flat(Generated):
    def next(self):
        return super().next()["x"]


class Sound(Generated):
    pass


def task(data, kind):
    made = generated_data.task(data)

    def stream(size):
        return globals()[kind](size, data.lease_windows, make)

    def make(numbers):
        return generated_data.points(numbers, 0, inputs=8)

    return replace(made, stream=stream)
"""
CONFIG = """
[task]
target = "my_source_of_data:task"
options = {{ kind = "{kind}" }}
[data]
lease_windows = 4
[sync]
fragments = 2
[[islands]]
count = 2
batch_size = 6
"""


def entered(folder: Path, kind: str) -> None:
    """Check a run with this class of source as its start does."""
    (folder / "my_source_of_data.py").write_text(MODULE)
    (path := folder / "run.toml").write_text(CONFIG.format(kind=kind))
    enter(read(path), path, folder / "run", datetime.now(UTC))


def test_source_whose_batches_are_not_those_of_the_evaluation_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    entered(tmp_path, "Sound")
    with pytest.raises(UserMistake) as refusal:
        entered(tmp_path, "Flat")
    text = str(refusal.value)
    assert f"{tmp_path}/my_source_of_data.py:7: task generated: stream(6) returns a Flat" in text
    assert "gives a batch of float32[6,8], and held-out batches have x float32[6,8]" in text
