"""A study whose measure is a metric of the user's task: its refusals, and a whole one."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

import archipelago
from archipelago.lab.study.cells import CellResult
from archipelago.lab.study.paired_statistics import gaps_percent
from archipelago.lab.study.plan import Study, planned
from archipelago.lab.study.result import summed
from archipelago.lab.study.task_metrics import check_metric
from coordinator.errors import UserMistake

TASK = """
import jax
import jax.numpy as jnp
import numpy as np
import optax

import archipelago as ap


def task(data, quiet=False):
    def examples():
        points = np.random.default_rng(0).standard_normal((1024, 4)).astype(np.float32)
        return {"x": points, "y": (points.sum(axis=1) > 0).astype(np.int32)}

    def init(key):
        return {"w": jax.random.normal(key, (4, 2))}

    def loss(params, batch):
        logits = batch["x"] @ params["w"]
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return nats if quiet else (nats, {"right": (logits.argmax(-1) == batch["y"]).mean()})

    return ap.supervised_task(init, loss, examples, data, classes=2)
"""
STUDY = """
[study]
name = "right"
dir = "{folder}"
seeds = 2
against = "idle"
measure = "{measure}"
better = "{better}"
[run]
steps = 8
[task]
target = "task_with_a_metric:task"
[data]
lease_windows = 64
heldout_percent = 20.0
[optimizer]
learning_rate = 0.1
warmup_steps = 0
[sync]
every = 4
fragments = 1
[[islands]]
count = 2
batch_size = 16
[[arms]]
name = "idle"
set = {{ optimizer.learning_rate = 1e-6 }}
[[arms]]
name = "trains"
"""


def study_of(folder: Path, **changes: Any) -> Study:
    text = STUDY.format(folder=folder, measure="heldout_metrics.right", better="higher")
    tables = tomllib.loads(text)
    tables["study"] |= changes
    tables["study"] = {k: v for k, v in tables["study"].items() if v is not None}
    return planned(tables, origin="x", name="x")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "task_with_a_metric.py").write_text(TASK)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def made(**metrics: float) -> CellResult:
    figures = {"heldout_loss": 1.0, "tokens_trained": 100, "wall_s": 2.0}
    return CellResult({**figures, "heldout_metrics": metrics}, (), "", 1.0, "source")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_study_measures_a_metric_of_the_users_task(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from archipelago.cli.main import main

    path = place / "study.toml"
    text = STUDY.format(folder=place, measure="heldout_metrics.right", better="higher")
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["study", str(path), "--jobs", "1", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0, told
    rows = {row["arm"]: row for row in told["rows"]}
    name = "heldout_metrics.right"
    assert (told["measure"], told["better"]) == (name, "higher")
    assert 0 <= rows["idle"][name] < rows["trains"][name] <= 1
    assert rows["trains"][f"{name}_low"] <= rows["trains"][name] <= rows["trains"][f"{name}_high"]
    assert rows["trains"]["gap_percent"] > 0
    assert rows["trains"]["pairs"] == 2
    assert name in (place / "right" / "table.txt").read_text()


@pytest.mark.slow
def test_metric_that_no_cell_has_is_refused_before_anything_is_trained(place: Path) -> None:
    near = study_of(place, measure="heldout_metrics.rigth")
    with pytest.raises(UserMistake, match=r"no cell has a metric \"rigth\"; did you mean right\?"):
        check_metric(near, {})
    check_metric(study_of(place), {})
    quiet = tomllib.loads(STUDY.format(folder=place, measure="heldout_metrics.a", better="lower"))
    quiet["task"]["options"] = {"quiet": True}
    with pytest.raises(UserMistake, match="the loss of its task returns none"):
        check_metric(planned(quiet, origin="x", name="x"), {})
    assert not (place / "right").exists()


def test_metrics_of_trained_cells_are_read_from_their_results(tmp_path: Path) -> None:
    """The task is not loaded then: here there is none."""
    study = study_of(tmp_path)
    check_metric(study, dict.fromkeys(study.cells, made(right=0.5)))
    with pytest.raises(UserMistake, match=r"no cell has .* known are left, wrong"):
        check_metric(study, dict.fromkeys(study.cells, made(wrong=0.5, left=0.1)))


@pytest.mark.parametrize(("better", "best"), [("lower", 0.1), ("higher", 0.3)])
def test_study_says_which_value_of_a_metric_is_better(
    tmp_path: Path, better: str, best: float
) -> None:
    tables = tomllib.loads(
        STUDY.format(folder=tmp_path, measure="heldout_metrics.a.b", better=better)
    )
    tables["study"]["seeds"] = 1
    del tables["study"]["against"]
    tables["arms"] = [{"name": "only", "axes": {"sync.every": [4, 8]}}]
    study = planned(tables, origin="x", name="x")
    there = {
        row.cells[0].key: made(**{"a.b": value})
        for row, value in zip(study.rows, (0.1, 0.3), strict=True)
    }
    (line,) = (line for line in summed(study, there).lines if line.best)
    assert line.measured.value == best
    assert line.figures["heldout_metrics.a.b"] == best


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"better": None}, 'study.better: is missing; "heldout_metrics.right" is a metric'),
        ({"better": "more"}, 'study.better: must be "lower" or "higher", given "more"'),
        ({"measure": "heldout_metrics."}, "names no metric"),
        ({"measure": "goodput"}, 'study.better: is for a metric of the task alone; of "goodput"'),
        ({"measure": "heldout_los"}, '"heldout_los" is no measure; did you mean heldout_loss?'),
    ],
)
def test_refuses_a_measure_that_is_none(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserMistake) as refusal:
        study_of(tmp_path, **changes)
    (_, line) = str(refusal.value).splitlines()
    assert words in line


def test_higher_of_two_negative_values_gives_a_positive_gap() -> None:
    assert gaps_percent([-1.0, 3.0], [-2.0, 2.0]) == pytest.approx([50, 50])


def test_python_api_refuses_a_metric_that_no_cell_has_before_it_trains(place: Path) -> None:
    path, trained = place / "right.toml", list[str]()
    path.write_text(
        STUDY.format(folder=place, measure="heldout_metrics.rihgt", better="higher"),
        encoding="utf-8",
    )
    with pytest.raises(UserMistake, match=r'no cell has a metric "rihgt"; .*right'):
        archipelago.study(path, on_cell=lambda label, loss: trained.append(label))
    assert not trained
    assert not (place / "right").exists()
