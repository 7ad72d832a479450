"""Tests that written files are strict JSON, whatever a run has measured."""

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
def test_finite_values_are_written_unchanged(sound: object) -> None:
    assert strictly(json_text(sound)) == sound
    assert strictly(json_bytes(sound)) == sound


def test_tuples_and_enums_become_plain_json() -> None:
    assert strictly(json_text({"a": (1, 2.5), Colour.RED: Colour.RED})) == {
        "a": [1, 2.5],
        "red": "red",
    }
    assert json_text({"a": 1, "b": [2]}) == '{"a": 1, "b": [2]}', "on one line"


def test_values_that_are_not_finite_become_null_and_are_listed() -> None:
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


def test_long_list_of_values_that_are_not_finite_is_counted() -> None:
    told = strictly(json_text({"x": [math.nan] * (NAMED + 30)}))
    assert isinstance(told, dict)
    assert told["not_finite"][-2:] == [f"x.{NAMED - 1} = nan", "and 30 more"]


def test_input_is_not_modified() -> None:
    given = {"x": [math.nan]}
    json_text(given)
    assert list(given) == ["x"]
    assert math.isnan(given["x"][0])


def test_figures_are_read_back_as_numbers() -> None:
    told = read_figures(json_text({"heldout_loss": math.nan, "merges": 3}))
    assert math.isnan(told["heldout_loss"])
    assert told["merges"] == 3
