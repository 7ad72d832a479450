"""Multiple-choice questions for a model of text: the choice with the highest log-likelihood counts.

A set is a file of JSON lines, in the form that tasks of lm-evaluation-harness have:

    {"question": "...", "choices": ["...", "..."], "answer": 0}

The score of a choice is the sum of the log-probabilities of its tokens behind the question and a
space. `accuracy` takes the choice with the highest score, `accuracy_norm` that with the highest
score for each character (`acc` and `acc_norm` there).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.text_model import TextCodec, TextModel

BATCH = 16
"""Choices that are computed at once."""
PROBLEMS_SHOWN = 5
DELIMITER = " "
"""The text between a question and a choice."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its choices."""

    question: str
    choices: tuple[str, ...]
    answer: int
    """The number of the right choice."""


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """The result of a model on one set of questions."""

    task: str
    """The name of the file, without its suffix."""
    questions: int
    chance: float
    """The expected share of right answers of a random choice."""
    accuracy: float
    """The share of right answers."""
    accuracy_stderr: float
    """The standard error of that share."""
    accuracy_norm: float
    """The share of right answers by the score for each character."""
    accuracy_norm_stderr: float
    """The standard error of that share."""


def read_questions(path: Path, option: str) -> list[Question]:
    """Return the questions of a file; `option`: the option or key that names it.

    Errors: `UserMistake` with the first problems of the file.
    """
    where = f"{option} {path}"
    try:
        text = path.expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserMistake(f"{where}: it cannot be read: {error}") from error
    found, problems = list[Question](), list[str]()
    for number, line in enumerate(text.split("\n"), 1):  # JSON may hold U+2028 and U+0085
        if not line.strip():
            continue
        question = _question(line)
        if isinstance(question, str):
            problems.append(f"{where}: line {number}: {question}")
        else:
            found.append(question)
    if problems:
        more = len(problems) - PROBLEMS_SHOWN
        shown = [*problems[:PROBLEMS_SHOWN], *([f"... and {more} more"] if more > 0 else [])]
        raise UserMistake("\n".join(shown))
    if not found:
        raise UserMistake(f"{where}: it has no questions")
    return found


def _question(line: str) -> Question | str:
    """Return the question of a line, or why it is none."""
    try:
        row = json.loads(line)
    except ValueError as error:
        return f"it is no JSON: {error}"
    if not isinstance(row, dict):
        return "it is no JSON object"
    question, choices, answer = (row.get(name) for name in ("question", "choices", "answer"))
    if not isinstance(question, str) or not question:
        return "question must be a text"
    if not isinstance(choices, list) or not all(isinstance(each, str) and each for each in choices):
        return "choices must be a list of texts"
    if len(choices) < 2:
        return f"choices has {len(choices)} entries, and at least 2 are needed"
    if type(answer) is not int or not 0 <= answer < len(choices):
        return f"answer = {answer!r}: must be a number from 0 to {len(choices) - 1}"
    return Question(question, tuple(choices), answer)


def score(
    name: str, questions: Sequence[Question], text: TextModel, params: Any, window: int
) -> ChoiceScore:
    """Return the score of a model; of longer texts, the last `window` + 1 tokens are computed.

    Errors: `UserMistake` if a likelihood is NaN.
    """
    rows = [
        _row(text.codec, each.question, choice, window)
        for each in questions
        for choice in each.choices
    ]
    likelihoods = _LogLikelihoods(text, params, window).of(rows)
    if np.isnan(likelihoods).any():  # the highest of several NaN would be the first choice
        raise UserMistake(f"{name}: the model's scores are NaN: its parameters are not finite")
    right, right_norm, chance, first = list[bool](), list[bool](), 0.0, 0
    for each in questions:
        scores = likelihoods[first : first + len(each.choices)]
        first += len(each.choices)
        lengths = np.array([len(choice) for choice in each.choices])
        right.append(int(np.argmax(scores)) == each.answer)
        right_norm.append(int(np.argmax(scores / lengths)) == each.answer)
        chance += 1 / len(each.choices)
    count = len(questions)
    share, norm = float(np.mean(right)), float(np.mean(right_norm))
    return ChoiceScore(
        name, count, chance / count, share, stderr(share, count), norm, stderr(norm, count)
    )


def stderr(share: float, count: int) -> float:
    """Return the standard error of a share: the sample deviation over the root of the count."""
    return math.sqrt(share * (1 - share) / (count - 1)) if count > 1 else math.nan


def _row(codec: TextCodec, question: str, choice: str, window: int) -> tuple[list[int], int]:
    """Return the tokens of a question with a choice, and how many of them are of the choice.

    The choice has the tokens of the whole text behind as many as the question has alone, as in
    lm-evaluation-harness.
    """
    alone, whole = codec.encode(question), codec.encode(f"{question}{DELIMITER}{choice}")
    kept = whole[-(window + 1) :]
    return kept, max(1, min(len(whole) - len(alone), len(kept) - 1))


class _LogLikelihoods:
    """The log-likelihoods of the ends of texts."""

    def __init__(self, text: TextModel, params: Any, window: int) -> None:
        self._params, self._window = jax.device_put(params), window

        def likelihoods(params: Any, rows: jax.Array, counted: jax.Array) -> jax.Array:
            scores = text.logits(params, rows[:, :-1])
            right = jnp.take_along_axis(scores, rows[:, 1:, None], axis=-1)[..., 0]
            each = right - jax.nn.logsumexp(scores, axis=-1)
            return jnp.sum(jnp.where(counted, each, 0.0), axis=-1)

        self._compiled = jax.jit(likelihoods)

    def of(self, rows: Sequence[tuple[list[int], int]]) -> NDArray[np.float64]:
        """Return the log-likelihood of the last tokens of each row, in nats."""
        found = np.zeros(len(rows))
        for first in range(0, len(rows), BATCH):
            tokens = np.zeros((BATCH, self._window + 1), np.int32)
            counted = np.zeros((BATCH, self._window), bool)
            part = rows[first : first + BATCH]
            for place, (row, end) in enumerate(part):
                tokens[place, : len(row)] = row
                counted[place, len(row) - 1 - end : len(row) - 1] = True
            scores = np.asarray(self._compiled(self._params, tokens, counted), np.float64)
            found[first : first + len(part)] = scores[: len(part)]
        return found
