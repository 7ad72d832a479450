"""What is written for others is strict JSON, whatever a run has measured."""

from __future__ import annotations

import json
import math
from enum import StrEnum

import numpy as np
import pytest

from cluster.storage.files import NAMED, json_bytes, json_text, read_figures


class Colour(StrEnum):
    RED = "red"


def strictly(text: str | bytes) -> object:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    "sound",
    [None, True, 3, 0.1, 1e300, "nan", [], {}, {"a": [1, {"b": None}]}, [[0, 5.5], [40, 3.25]]],
)
def test_what_is_finite_is_written_as_it_is(sound: object) -> None:
    assert strictly(json_text(sound)) == sound
    assert strictly(json_bytes(sound)) == sound


def test_tuples_and_words_of_ours_are_plain() -> None:
    assert strictly(json_text({"a": (1, 2.5), Colour.RED: Colour.RED})) == {
        "a": [1, 2.5],
        "red": "red",
    }
    assert json_text({"a": 1, "b": [2]}) == '{"a": 1, "b": [2]}', "on one line"


def test_what_is_not_finite_is_null_and_an_object_says_what_it_was() -> None:
    summary = {
        "heldout_loss": math.nan,
        "gap": -math.inf,
        "merges": 3,
        "islands": [{"loss": 1.5}, {"loss": np.float64(math.inf)}],
        "heldout": [(0, 5.5), (12, math.nan)],
    }
    assert strictly(json_text(summary)) == {
        "heldout_loss": None,
        "gap": None,
        "merges": 3,
        "islands": [{"loss": 1.5}, {"loss": None}],
        "heldout": [[0, 5.5], [12, None]],
        "not_finite": [
            "heldout_loss = nan",
            "gap = -inf",
            "islands.1.loss = inf",
            "heldout.1.1 = nan",
        ],
    }
    assert strictly(json_text([1.0, math.nan])) == [1.0, None]
    assert strictly(json_text(math.nan)) is None


def test_where_there_are_many_they_are_counted() -> None:
    told = strictly(json_text({"x": [math.nan] * (NAMED + 30)}))
    assert isinstance(told, dict)
    assert told["not_finite"][-2:] == [f"x.{NAMED - 1} = nan", "and 30 more"]


def test_what_was_given_is_left_as_it_was() -> None:
    given = {"x": [math.nan]}
    json_text(given)
    assert list(given) == ["x"]
    assert math.isnan(given["x"][0])


def test_figures_are_read_back_as_numbers() -> None:
    told = read_figures(json_text({"heldout_loss": math.nan, "merges": 3}))
    assert math.isnan(told["heldout_loss"])
    assert told["merges"] == 3
