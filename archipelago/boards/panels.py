"""Panels and boards, and their JSON for Grafana.

The places of the panels follow from their order, so that a board is a list of questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

COLUMNS = 24
"""The columns of a board."""
STAT_WIDTH, STAT_HEIGHT = 4, 4
"""The size of a panel that shows one number."""
CHART_WIDTH, CHART_HEIGHT = 12, 8
"""The size of a chart."""
SCHEMA = 39
"""The version of Grafana's schema of boards: Grafana 11 and later."""
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
"""The data source that the variable chooses."""
TAG = "archipelago"
"""The tag of all boards, by which each links to the others."""
RUN = '{run="$run"}'
"""The selector of one run."""
ISLANDS = '{run="$run",group=~"$group"}'
"""The selector of the islands of one run and its chosen groups."""
RUNS = '{run=~"$run"}'
"""The selector of all chosen runs."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel."""

    expr: str
    """The PromQL expression, with the variables of the board."""
    legend: str = "{{run}}"
    """The name of each series, from its labels."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: one chart or one number."""

    title: str
    description: str
    """The question that it answers, and the values that are good."""
    queries: Sequence[Query]
    unit: str = "short"
    """A unit of Grafana: short, s, percentunit, bps, Bps or none."""
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    stacked: bool = False
    """Whether the series are parts of a whole."""
    bad_below: float | None = None
    """The value below which the number is red."""
    bad_above: float | None = None
    """The value above which the number is red."""


@dataclass(frozen=True, slots=True)
class Board:
    """A board, which answers one question."""

    uid: str
    """The stable id, which is in addresses."""
    title: str
    """The question."""
    description: str
    panels: Sequence[Panel]
    many_runs: bool = False
    """Whether it shows several runs at once."""
    groups: bool = False
    """Whether people choose groups of islands."""

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.uid}.json"


def board_json(board: Board) -> dict[str, Any]:
    """Return a board as Grafana imports it."""
    return {
        "uid": board.uid,
        "title": f"Archipelago: {board.title}",
        "description": board.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [*_annotations(board)]},
        "templating": {"list": [*_variables(board)]},
        "links": [
            {
                "title": "Archipelago",
                "type": "dashboards",
                "icon": "external link",
                "tooltip": "The other boards of Archipelago",
                "tags": [TAG],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "panels": [*_placed(board.panels)],
    }


def _variables(board: Board) -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
    }
    yield _query_variable(
        "run", "Run", "label_values(archipelago_build_info, run)", many=board.many_runs
    )
    if board.groups:
        query = 'label_values(archipelago_island_state{run="$run"}, group)'
        yield _query_variable("group", "Group", query, many=True)


def _query_variable(name: str, label: str, query: str, *, many: bool) -> dict[str, Any]:
    variable: dict[str, Any] = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 2,
        "multi": many,
        "includeAll": many,
    }
    if many:
        variable["allValue"] = ".*"
        variable["current"] = {"text": "All", "value": "$__all"}
    return variable


def _annotations(board: Board) -> Iterator[dict[str, Any]]:
    """Yield the events that lines across all panels show: faults, losses, scalings and alerts."""
    run = RUNS if board.many_runs else RUN
    chosen = run[1:-1]
    shown = (
        ("Faults on purpose", f"changes(archipelago_faults_total{run}[1m]) > 0", "red"),
        (
            "Lost islands",
            f"sum by (run, island) (changes(archipelago_island_restarts_total{run}[1m])) > 0",
            "orange",
        ),
        ("Scaling", f"changes(archipelago_islands_wanted{run}[1m]) > 0", "blue"),
        ("Alerts", f'ALERTS{{alertstate="firing",{chosen}}}', "purple"),
    )
    for name, expr, colour in shown:
        yield {
            "name": name,
            "datasource": DATASOURCE,
            "enable": True,
            "hide": False,
            "iconColor": colour,
            "expr": expr,
            "step": "10s",
            "titleFormat": name,
            "textFormat": "{{run}} {{island}} {{alertname}}",
        }


def _placed(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    """Yield the panels with their places: in rows from the left, in order."""
    x = y = row = 0
    for number, panel in enumerate(panels, 1):
        stat = panel.kind == "stat"
        width = STAT_WIDTH if stat else CHART_WIDTH
        height = STAT_HEIGHT if stat else CHART_HEIGHT
        if x + width > COLUMNS or (row and height != row):
            x, y = 0, y + row
        row = height
        yield _panel(panel, number, {"x": x, "y": y, "w": width, "h": height})
        x += width


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.unit == "percentunit" and panel.kind == "timeseries":
        defaults |= {"min": 0, "max": 1}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal", "group": "A"} if panel.stacked else {"mode": "none"}
        fill = 60 if panel.stacked else 0
        defaults["custom"] = {"fillOpacity": fill, "showPoints": "never", "stacking": stacking}
        options: dict[str, Any] = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    elif panel.kind == "stat":
        defaults |= _thresholds(panel)
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}
    else:
        options = {"showHeader": True}
    return {
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "type": panel.kind,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                **({"format": "table", "instant": True} if panel.kind == "table" else {}),
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _thresholds(panel: Panel) -> dict[str, Any]:
    """Return the colours of a number: red where it is bad."""
    if panel.bad_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.bad_below}]
    elif panel.bad_above is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.bad_above}]
    else:
        steps = [{"color": "text", "value": None}]
    return {"thresholds": {"mode": "absolute", "steps": steps}}
