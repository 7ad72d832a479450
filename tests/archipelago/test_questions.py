"""Multiple-choice questions: made from text, read, and scored by the likelihood of each choice."""

from __future__ import annotations

import email
import gzip
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from archipelago.cli.main import main
from archipelago.question_sets import QuestionKind, questions_from
from coordinator.errors import UserMistake
from islands.multiple_choice import Question, read_questions, score, stderr
from islands.sources import DataSpec
from islands.text_model import Bytes, TextModel

EMAIL = str(Path(email.__file__).parent)
"""A package of the standard library with docstrings."""
WORDS = ("apple", "bread", "chair", "dream", "eagle", "flame", "grass", "horse", "island", "jungle")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    return int(done.value.code or 0)


def source(path: Path) -> DataSpec:
    return DataSpec(str(path), None, False, 1.0, 1, 0, 1)


def written(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows)
    )
    return path


# --- scores ---------------------------------------------------------------------------------------


def model_of(logits: Any) -> TextModel:
    """Return a model of bytes without a decoder, which no score needs."""
    unused: Any = None
    return TextModel(Bytes(), logits, unused)


def preferring(word: str, reward: float = 5.0) -> TextModel:
    """Return a model of bytes that expects each byte of a word behind the one before it."""
    follows = np.zeros((256, 256), np.float32)
    for a, b in zip(f" {word}", word, strict=False):
        follows[ord(a), ord(b)] = reward
    table = jnp.asarray(follows)
    return model_of(lambda params, tokens: table[tokens] + params)


def questions(answers: list[int]) -> list[Question]:
    return [Question("The answer is", ("horse", "eagle", "grass"), answer) for answer in answers]


def test_choice_with_the_highest_likelihood_is_taken() -> None:
    model = preferring("eagle")
    params = jnp.zeros(())
    found = score("set", questions([1] * 6 + [0] * 3 + [2]), model, params, 64)
    assert found.accuracy == pytest.approx(0.6)
    assert found.accuracy_norm == pytest.approx(0.6)
    assert found.accuracy_stderr == pytest.approx(math.sqrt(0.6 * 0.4 / 9))
    assert found.chance == pytest.approx(1 / 3)
    assert (found.task, found.questions) == ("set", 10)
    assert score("set", questions([1] * 4), preferring("horse"), params, 64).accuracy == 0


def test_model_of_nan_has_no_accuracy() -> None:
    """Else it would choose the first answer each time, and be right by chance."""
    with pytest.raises(UserMistake, match="not finite"):
        score("set", questions([0, 1]), preferring("eagle"), jnp.asarray(math.nan), 64)


def test_score_for_each_character_differs_from_the_sum() -> None:
    """A long choice loses in the sum, and wins for each character."""
    model = preferring("eagleeagleeagle", 2.0)
    asked = [Question("Q:", ("eagleeagle", "cat"), 0)] * 3
    found = score("set", asked, model, jnp.zeros(()), 64)
    assert (found.accuracy, found.accuracy_norm) == (0, 1)


def test_likelihood_is_that_of_the_choice_alone() -> None:
    """The question does not count, and neither does padding."""
    table = jnp.asarray(np.random.default_rng(0).normal(0, 2, (256, 256)).astype(np.float32))
    model = model_of(lambda params, tokens: table[tokens])
    logs = np.asarray(jax.nn.log_softmax(table, axis=-1), np.float64)

    def likelihood(question: str, choice: str) -> float:
        text = f"{question} {choice}".encode()
        return sum(logs[a, b] for a, b in [*pairwise(text)][len(question) - 1 :])

    rng = np.random.default_rng(1)
    asked = [
        Question("q" * int(rng.integers(1, 9)), tuple(rng.choice(WORDS, 4, replace=False)), 0)
        for _ in range(40)
    ]
    right = [int(np.argmax([likelihood(each.question, c) for c in each.choices])) for each in asked]
    answered = [Question(e.question, e.choices, a) for e, a in zip(asked, right, strict=True)]
    assert len({*right}) == 4
    assert score("set", answered, model, None, 32).accuracy == 1
    assert score("set", answered, model, None, 10).accuracy > 0.8  # only the end of long ones


def test_standard_error_of_one_question_is_unknown() -> None:
    assert math.isnan(stderr(1.0, 1))
    assert stderr(0.5, 101) == pytest.approx(0.05)


# --- files ----------------------------------------------------------------------------------------


def test_all_problems_of_a_file_are_named(here: Path) -> None:
    good = {"question": "a", "choices": ["b", "c"], "answer": 1}
    path = written(
        here / "q.jsonl", good, "{", [], good | {"question": ""}, good | {"choices": ["b"]},
        good | {"choices": "bc"}, good | {"answer": 2}, good | {"answer": True},
    )  # fmt: skip
    with pytest.raises(UserMistake) as error:
        read_questions(path, "--tasks")
    said = str(error.value)
    for part in (
        "line 2: it is no JSON", "line 3: it is no JSON object", "line 4: question must be",
        "line 5: choices has 1 entries", "line 6: choices must be a list", "... and 2 more",
    ):  # fmt: skip
        assert part in said
    with pytest.raises(UserMistake, match="it has no questions"):
        read_questions(written(here / "none.jsonl", ""), "--tasks")
    with pytest.raises(UserMistake, match="it cannot be read"):
        read_questions(here / "nowhere.jsonl", "--tasks")


def test_lines_end_at_line_ends_only(here: Path) -> None:
    text = "a\u2028b\x85c"  # each of them is a line end for `str.splitlines`
    row = {"question": text, "choices": [text, "e"], "answer": 0}
    line = json.dumps(row, ensure_ascii=False)
    (here / "q.jsonl").write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n\n{line}\n".encode())
    found = read_questions(here / "q.jsonl", "--tasks")
    assert [each.question for each in found] == [text, text]


def test_made_file_is_read_back(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "questions", "definitions", EMAIL, "d.jsonl", "--count", "50") == 0
    assert "d.jsonl: 50 questions (definitions)" in capsys.readouterr().out
    found = read_questions(here / "d.jsonl", "--tasks")
    assert len(found) == 50
    assert {len(each.choices) for each in found} == {4}
    assert all(len({*each.choices}) == 4 for each in found)
    assert {each.answer for each in found} == {0, 1, 2, 3}
    longest = [np.argmax([*map(len, each.choices)]) == each.answer for each in found]
    assert np.mean(longest) < 0.5  # the length does not give the answer away
    assert run("data", "questions", "definitions", EMAIL, "e.jsonl", "--count", "50") == 0
    assert (here / "d.jsonl").read_bytes() == (here / "e.jsonl").read_bytes()
    assert run("data", "questions", "definitions", EMAIL, "d.jsonl") == 2
    assert "d.jsonl exists already" in capsys.readouterr().err
    assert run("data", "questions", "riddles", EMAIL, "r.jsonl") == 2
    assert "there are definitions, cloze" in capsys.readouterr().err


def test_damaged_packed_pages_are_passed_over(here: Path) -> None:
    page = gzip.compress(b".SH NAME\nls \\- list directory contents\n" * 50)
    (here / "torn.1.gz").write_bytes(page[:20] + bytes(20) + page[40:])
    (here / "short.1.gz").write_bytes(page[:-9])
    with pytest.raises(UserMistake, match="has 0 definitions"):
        questions_from(QuestionKind.DEFINITIONS, source(here), 1, 0)


def test_definitions_come_from_manual_pages(here: Path) -> None:
    for number, word in enumerate(WORDS):
        line = f"{word} \\- print the \\fB{word}\\fP of number {number}"
        page = f".TH X 1\n.SH NAME\n{line}\n.SH SYNOPSIS\n"
        (here / "man").mkdir(exist_ok=True)
        (here / "man" / f"{word}.1.gz").write_bytes(gzip.compress(page.encode()))
    rows = questions_from(QuestionKind.DEFINITIONS, source(here / "man" / "*.gz"), 10, 0)
    for row in rows:
        name = str(row["question"]).removesuffix(" -")
        choices: Any = row["choices"]
        answer: Any = row["answer"]
        assert choices[answer] == f"print the {name} of number {WORDS.index(name)}"


def test_packed_file_in_a_folder_does_not_hide_its_texts(here: Path) -> None:
    lines = (f"def f{n}():\n    '''Return {n} words of a text.'''\n" for n in range(20))
    (here / "functions.py").write_text("".join(lines))
    (here / "fixture.gz").write_bytes(gzip.compress(b"x"))
    assert len(questions_from(QuestionKind.DEFINITIONS, source(here), 10, 0)) == 10


def test_cloze_leaves_the_last_word_out(here: Path) -> None:
    sentences = [f"This is sentence number {n} and it ends with the word {w}." for n, w in
                 enumerate(WORDS)]  # fmt: skip
    (here / "text.txt").write_text("Too short. " + " ".join(sentences))
    rows = questions_from(QuestionKind.CLOZE, source(here / "text.txt"), 10, 0)
    found = {str(row["question"]): row for row in rows}
    for sentence, word in zip(sentences, WORDS, strict=True):
        row: Any = found[sentence.removesuffix(f" {word}.")]
        assert row["choices"][row["answer"]] == word
    with pytest.raises(UserMistake, match="the source has 10 cloze, and 11 are needed"):
        questions_from(QuestionKind.CLOZE, source(here / "text.txt"), 11, 0)
