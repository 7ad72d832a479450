"""The final model of a virtual run answers questions, and a study compares the shares."""

from __future__ import annotations

import gzip
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from archipelago.lab.study.cells import CellFiles, CellResult
from archipelago.lab.study.plan import Study, read
from archipelago.lab.study.result import summed
from archipelago.lab.study.training_jobs import make
from archipelago.lab.training.question_sets import QuestionSets
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.train import train
from cluster.config.load import parse
from cluster.config.schema import Config
from coordinator.errors import UserMistake

STUDIES = Path(__file__).parents[2] / "examples" / "studies"
LETTERS = "abcdefgh"
STUDY = """
[study]
seeds = 1
against = "one"
measure = "accuracy_norm_next"

[task]
preset = "byte-tiny"

[virtual]
tasks = ["next.jsonl"]

[[islands]]
group = "local"

[[arms]]
name = "one"

[[arms]]
name = "other"
axes = { sync.every = [12, 24, 48] }
"""

TASK = """
import archipelago as ap
import numpy as np


def task(data):
    return ap.supervised_task(
        lambda key: {"weight": np.ones(3, np.float32)},
        lambda params, batch: ((batch["inputs"] @ params["weight"]) ** 2).mean(),
        lambda: {"inputs": np.ones((64, 3), np.float32)},
        data,
        classes=2,
    )
"""


def write_questions(path: Path) -> str:
    """Write questions about the alphabet; the first and the second choice are right in turn."""
    rows = list[str]()
    for first in range(len(LETTERS) - 2):
        asked, answer = " ".join(LETTERS[first : first + 2]), first % 2
        right, wrong = LETTERS[first + 2], LETTERS[first]
        row = {"question": asked, "choices": [wrong, right] if answer else [right, wrong]}
        rows.append(json.dumps({**row, "answer": answer}))
    path.write_text("\n".join(rows))
    return str(path)


def config_of(folder: Path, mode: str) -> Config:
    """Return a run on text in which each letter follows the one before it, behind a space."""
    text = folder / "text"
    text.mkdir()
    for number in range(8):
        (text / f"{number}.txt").write_text(f"{' '.join(LETTERS)} " * 100)
    given = {
        "run": {"steps": 60, "mode": mode},
        "task": {
            "preset": "byte-tiny",
            "options": {"width": 16, "layers": 1, "heads": 1, "hidden": 32},
        },
        "data": {"source": str(text), "window": 16, "lease_windows": 32, "heldout_percent": 20.0},
        "optimizer": {"kind": "adamw", "learning_rate": 1e-2, "warmup_steps": 4},
        "sync": {"fragments": 3} | ({"every": 6} if mode == "decoupled" else {}),
        "islands": [{"group": "local", "count": 2, "batch_size": 4}],
    }
    return parse(given, origin="test")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["decoupled", "data-parallel"])
def test_final_model_answers_and_the_training_is_the_same(tmp_path: Path, mode: str) -> None:
    config, questions = config_of(tmp_path, mode), write_questions(tmp_path / "next.jsonl")
    plain = train(config, Timing(), 0).figures
    asked = train(config, Timing(), 0, tasks=[questions]).figures
    assert {**asked, **plain} == asked
    assert asked["accuracy_next"] == asked["accuracy_norm_next"] == 1.0, "the first choice has 0.5"
    assert asked.keys() - plain.keys() == {"accuracy_next", "accuracy_norm_next"}


def study_in(folder: Path) -> Study:
    (folder / "study.toml").write_text(STUDY)
    return read(folder / "study.toml")


def test_highest_accuracy_is_the_best(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    shares = dict(zip(study.cells, (0.25, 0.30, 0.50, 0.40), strict=True))
    made = {
        key: CellResult({"accuracy_norm_next": share}, (), "", 1.0, "")
        for key, share in shares.items()
    }
    lines = summed(study, made).lines
    assert [line.row.point.get("sync.every") for line in lines if line.best] == [None, 24]
    assert lines[2].gap is not None
    assert lines[2].gap.value == pytest.approx(100.0), "per cent of the opponent's share"
    assert lines[2].figures["accuracy_norm_next"] == 0.5


@pytest.mark.parametrize("measure", ["accuracy_nxt", "heldout_loss_average_0.1"])
def test_measure_that_no_cell_has_is_refused(tmp_path: Path, measure: str) -> None:
    (tmp_path / "study.toml").write_text(STUDY.replace("accuracy_norm_next", measure))
    with pytest.raises(
        UserMistake, match=rf'study.measure: no cell has "{measure}".*accuracy_next'
    ):
        read(tmp_path / "study.toml")


def test_broken_files_are_refused_before_a_cell_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study, files = study_in(tmp_path), CellFiles(tmp_path / "cells")
    with pytest.raises(UserMistake, match=r"virtual.tasks next.jsonl: it cannot be read"):
        make(files, study.cells, 1, lambda *_: None)
    (tmp_path / "next.jsonl").write_text("{}")
    with pytest.raises(UserMistake, match=r"virtual.tasks next.jsonl: line 1: question must be"):
        make(files, study.cells, 1, lambda *_: None)
    with pytest.raises(UserMistake, match="2 files have the name next"):
        QuestionSets.of(["next.jsonl", "more/next.jsonl"])


def test_questions_need_a_model_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "task_of_numbers.py").write_text(TASK)
    monkeypatch.syspath_prepend(tmp_path)
    questions = write_questions(tmp_path / "next.jsonl")
    given = {"task": {"target": "task_of_numbers:task"}, "islands": [{"group": "local"}]}
    with pytest.raises(UserMistake, match="not known as a model of text"):
        train(parse(given, origin="test"), Timing(), 0, tasks=[questions])


# --- the corpus of the study with questions -------------------------------------------------------

DICTIONARY = """'tween decks
    adv 1: in the space between decks, on a ship [syn: {between
           decks}, {'tween decks}]
abbess
    n 1: the superior of a group of nuns [syn: {abbess},
         {prioress}]
abet
    v 1: assist or encourage, usually in some wrongdoing; "they abet
         a crime"
    2: another sense
prioress
    n 1: the superior of a group of nuns [syn: {abbess},
         {prioress}]
"""


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(STUDIES / "prepare_questions.py"))


def test_first_sense_without_examples_is_the_definition(script: dict[str, Any]) -> None:
    assert [*script["definitions"](DICTIONARY)] == [
        ("abbess", "the superior of a group of nuns"),
        ("abet", "assist or encourage, usually in some wrongdoing"),
        ("prioress", "the superior of a group of nuns"),
    ]


def test_no_definition_that_is_asked_for_is_in_the_training_text(
    script: dict[str, Any], tmp_path: Path
) -> None:
    """Synonyms share a definition, so a split by words would show the answers."""
    entries = [
        f"{name}{number}\n    n 1: thing number {number} of many [syn: {{x}}]\n"
        for name in ("alpha", "omega")
        for number in range(200)
    ]
    packed = tmp_path / "root" / script["DICTIONARY"]
    packed.parent.mkdir(parents=True)
    packed.write_bytes(gzip.compress("".join(entries).encode()))
    for folder in ("text", "questions/dictionary"):
        (tmp_path / folder).mkdir(parents=True)
    script["write_dictionary"](tmp_path / "root", tmp_path)
    trained = (tmp_path / "text" / "dictionary-000.txt").read_text().splitlines()
    asked = (tmp_path / "questions" / "dictionary" / "left-out.txt").read_text().splitlines()
    assert asked[::2] == ["NAME"] * (len(asked) // 2), "the form that `data questions` reads"
    glosses = {line.split(" - ")[1] for line in asked[1::2]}
    assert 5 <= len(glosses) <= 40
    assert not [line for line in trained if line.split(" - ")[1] in glosses]
    assert len(trained) + len(asked) // 2 == len(entries)
