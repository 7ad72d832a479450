"""Each board fits Grafana's published schema, and the check finds what does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from archipelago.boards.panels import Board, board_json
from archipelago.boards.written import BOARDS
from tests.board_schema import problems


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_board_fits_the_schema_of_grafana(board: Board) -> None:
    assert problems(board_json(board)) == []


def board() -> Any:
    return json.loads(json.dumps(board_json(BOARDS[0])))


def panel(board: Any, kind: str) -> Any:
    return next(each for each in board["panels"] if each["type"] == kind)


def defaults(board: Any, kind: str) -> Any:
    return panel(board, kind)["fieldConfig"]["defaults"]


PLACES: dict[str, Callable[[Any], Any]] = {
    "board": lambda board: board,
    "time": lambda board: board["time"],
    "link": lambda board: board["links"][0],
    "variable": lambda board: board["templating"]["list"][1],
    "annotation": lambda board: board["annotations"]["list"][0],
    "panel": lambda board: board["panels"][0],
    "place": lambda board: board["panels"][0]["gridPos"],
    "query": lambda board: board["panels"][0]["targets"][0],
    "data source": lambda board: board["panels"][0]["datasource"],
    "unit": lambda board: board["panels"][0]["fieldConfig"]["defaults"],
    "threshold": lambda board: defaults(board, "stat")["thresholds"]["steps"][0],
    "drawing": lambda board: defaults(board, "timeseries")["custom"],
    "stacking": lambda board: defaults(board, "timeseries")["custom"]["stacking"],
    "legend": lambda board: panel(board, "timeseries")["options"]["legend"],
    "number": lambda board: panel(board, "stat")["options"]["reduceOptions"],
    "table": lambda board: panel(board, "table")["options"],
}  # fmt: skip
"""The tables of a board, one of each kind."""


@pytest.mark.parametrize("place", PLACES)
def test_misspelt_field_is_found_wherever_it_is(place: str) -> None:
    wrong = board()
    PLACES[place](wrong)["legendFromat"] = "{{run}}"
    (found,) = problems(wrong)
    assert found.endswith(".legendFromat: the schema has no such field")


@pytest.mark.parametrize(
    ("place", "field", "value"),
    [
        ("board", "title", 7), ("board", "schemaVersion", "39"), ("board", "editable", "yes"),
        ("board", "graphTooltip", 5), ("board", "tags", ["archipelago", 1]), ("board", "tags", "a"),
        ("time", "from", 30), ("link", "type", "boards"), ("link", "keepTime", "true"),
        ("variable", "refresh", 9), ("variable", "multi", 1), ("annotation", "enable", "on"),
        ("panel", "type", 3), ("panel", "description", ["why"]), ("place", "w", "12"),
        ("place", "x", True), ("query", "expr", 1), ("query", "instant", "yes"),
        ("query", "format", "tables"), ("data source", "uid", 4), ("unit", "min", "0"),
        ("threshold", "value", "80"), ("drawing", "fillOpacity", "60"),
        ("drawing", "showPoints", "sometimes"), ("stacking", "mode", "all"),
        ("legend", "placement", "left"), ("number", "calcs", "lastNotNull"),
        ("table", "showHeader", "yes"),
    ],
)  # fmt: skip
def test_value_of_a_wrong_type_is_found_wherever_it_is(
    place: str, field: str, value: object
) -> None:
    wrong = board()
    PLACES[place](wrong)[field] = value
    found = problems(wrong)
    assert len(found) == 1, found
    shown = value[-1] if isinstance(value, list) and field == "tags" else value
    assert f": {shown!r} is not " in found[0]


def test_table_in_place_of_a_list_is_found() -> None:
    wrong = board()
    wrong["panels"] = {"0": wrong["panels"][0]}
    (found,) = problems(wrong)
    assert found.startswith("the models cannot load it")


def test_field_that_the_schema_requires_is_missed() -> None:
    wrong = board()
    del PLACES["query"](wrong)["refId"]
    assert problems(wrong) == [".panels[0].targets[0].refId: the schema requires it"]
