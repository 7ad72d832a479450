"""Pictures of boards as PNG, drawn from the answers of a Prometheus: a board without Grafana.

The panels have the places and units of the board's JSON. They are drawn by us, so they resemble
those of Grafana and are not the same. matplotlib is an optional extra and is imported on the first
drawing.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archipelago.boards.panels import COLUMNS, Board, board_json
from archipelago.boards.prometheus_answers import Answers, Series
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_INCHES, ROW_INCHES, DPI = 0.46, 0.3, 100
"""The size of a cell of the board's grid, and the dots of an inch."""
HEAD_INCHES = 0.4
"""The height of the title."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#b8a800")
"""The Okabe-Ito palette, which any colour vision can distinguish, and two more colours."""
GOOD, BAD, PLAIN, FAINT = "#1a7f37", "#cf222e", "#1f2328", "#8c959f"
"""The colours of a number that is good, bad or neither, and of small words."""
PALETTE = 256
"""The colours of a PNG."""
MOST_NAMES = 6
"""The most series that a legend names."""
LABELS_LEFT_OUT = {"__name__", "job", "instance", "run"}
"""Labels that a table does not show: they are the same for the whole board."""
SCALES = {
    "percentunit": (100.0, "%"),
    "s": (1.0, "s"),
    "bps": (1e-6, "Mbit/s"),
    "Bps": (1e-6, "MB/s"),
}
"""The factor and the name of each unit of Grafana that is not shown as it is."""


@dataclass(frozen=True, slots=True)
class DrawnBoard:
    """A picture of a board."""

    path: Path
    """The file."""
    empty: tuple[str, ...]
    """The titles of panels for which Prometheus had no data."""


def draw_boards(boards: Sequence[Board], answers: Answers, folder: Path) -> list[DrawnBoard]:
    """Draw each board into a PNG of its uid, and return the pictures.

    Errors: `UserMistake` if matplotlib is not installed, Prometheus does not answer, or a file
    cannot be written.
    """
    if find_spec("matplotlib") is None:
        raise UserMistake("pictures need matplotlib, an optional extra: pip install matplotlib")
    drawn = list[DrawnBoard]()
    for board in boards:
        path = folder / f"{board.uid}.png"
        content, empty = draw_board(board, answers)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise UserMistake(f"{path} cannot be written: {error.strerror}") from error
        drawn.append(DrawnBoard(path, empty))
    return drawn


def draw_board(board: Board, answers: Answers) -> tuple[bytes, tuple[str, ...]]:
    """Return a board as PNG, and the titles of its panels without data."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    made = board_json(board)
    rows = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in made["panels"])
    width, height = COLUMNS * COLUMN_INCHES, rows * ROW_INCHES + HEAD_INCHES
    empty = list[str]()
    with mpl.rc_context({"font.size": 7, "axes.titlesize": 8, "text.color": PLAIN}):
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        figure.text(
            0.5 * COLUMN_INCHES / width, 1 - 0.6 * HEAD_INCHES / height, made["title"], size=11
        )
        figure.text(
            1 - 0.4 * COLUMN_INCHES / width, 1 - 0.6 * HEAD_INCHES / height,
            f"run {answers.run}; minutes before the end of the span", ha="right", color=FAINT,
        )  # fmt: skip
        marks = _marks(made, answers)
        for panel in made["panels"]:
            axes = _axes(figure, panel["gridPos"], width, height, panel["type"])
            axes.set_title(panel["title"], loc="left")
            if not _draw(axes, panel, answers, marks):
                axes.text(0.5, 0.5, "no data", ha="center", va="center", color=FAINT,
                          transform=axes.transAxes)  # fmt: skip
                empty.append(panel["title"])
        picture = io.BytesIO()
        figure.savefig(picture, format="png", metadata={"Software": None})
    return smaller(picture), tuple(empty)


def _axes(figure: Figure, place: Mapping[str, int], width: float, height: float, kind: str) -> Axes:
    """Return the axes of a panel; a chart leaves room for its legend and its axes."""
    chart = kind == "timeseries"
    left, right = (1.3 if chart else 0.5) * COLUMN_INCHES, 0.4 * COLUMN_INCHES
    top, bottom = 0.9 * ROW_INCHES, (2.4 if chart else 0.3) * ROW_INCHES
    x, y = place["x"] * COLUMN_INCHES + left, place["y"] * ROW_INCHES + HEAD_INCHES + top
    w, h = place["w"] * COLUMN_INCHES - left - right, place["h"] * ROW_INCHES - top - bottom
    return figure.add_axes((x / width, 1 - (y + h) / height, w / width, h / height))


def _draw(
    axes: Axes, panel: Mapping[str, Any], answers: Answers, marks: Mapping[str, Sequence[float]]
) -> bool:
    """Draw a panel, and return whether there was anything to draw."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    targets = [(each["expr"], each["legendFormat"]) for each in panel["targets"]]
    if panel["type"] == "timeseries":
        named = [
            (each.name(legend), each)
            for expression, legend in targets
            for each in answers.curves(expression)
            if each.points
        ]
        _chart(axes, named, panel, answers, marks)
        return bool(named)
    axes.set_axis_off()
    found = [each for expression, _ in targets for each in answers.newest(expression)]
    if panel["type"] == "table":
        return _table(axes, found)
    values = [each.points[-1][1] for each in found if each.points]
    if values:
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        axes.text(0.5, 0.45, value_text(values[0], unit), ha="center", va="center", size=17,
                  color=_colour(values[0], steps), transform=axes.transAxes)  # fmt: skip
    return bool(values)


def _chart(
    axes: Axes,
    named: Sequence[tuple[str, Series]],
    panel: Mapping[str, Any],
    answers: Answers,
    marks: Mapping[str, Sequence[float]],
) -> None:
    """Draw curves over minutes before the end of the span; parts of a whole are stacked."""
    defaults = panel["fieldConfig"]["defaults"]
    factor, unit = SCALES.get(defaults["unit"], (1.0, ""))
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    base: dict[float, float] = {}
    for number, (name, series) in enumerate(named):
        colour = COLOURS[number % len(COLOURS)]
        label = name if number < MOST_NAMES else None
        times = [(at_s - answers.to_s) / 60 for at_s, _ in series.points]
        if stacked:
            below = [base.get(at_s, 0.0) for at_s, _ in series.points]
            above = [b + factor * value for b, (_, value) in zip(below, series.points, strict=True)]
            axes.fill_between(times, below, above, color=colour, linewidth=0, label=label)
            base |= {at_s: top for (at_s, _), top in zip(series.points, above, strict=True)}
        else:
            values = [factor * value for _, value in series.points]
            axes.plot(times, values, color=colour, linewidth=1.3, label=label)
    for colour, times_s in marks.items():
        for at_s in times_s:
            axes.axvline((at_s - answers.to_s) / 60, color=colour, linewidth=0.7, linestyle=":")
    axes.set_xlim((answers.from_s - answers.to_s) / 60, 0)
    if "max" in defaults:
        axes.set_ylim(factor * defaults["min"], 1.02 * factor * defaults["max"])
    axes.set_ylabel(unit, color=FAINT)
    axes.grid(visible=True, linewidth=0.4, color="#d0d7de")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=FAINT, length=2)
    if named:
        more = len(named) - MOST_NAMES
        title = f"and {more} more" if more > 0 else None
        axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.12), ncols=3, fontsize=6,
                    frameon=False, handlelength=1, title=title, title_fontsize=6)  # fmt: skip


def _table(axes: Axes, found: Sequence[Series]) -> bool:
    """Draw the labels of the series, a line each."""
    lines = [
        f"{label}: {value}"
        for series in found
        for label, value in series.labels.items()
        if label not in LABELS_LEFT_OUT
    ]
    axes.text(0, 0.95, "\n".join(lines), va="top", transform=axes.transAxes)
    return bool(lines)


def _marks(made: Mapping[str, Any], answers: Answers) -> dict[str, list[float]]:
    """Return the times of the annotations by colour, in seconds since 1970: where each begins."""
    return {
        each["iconColor"]: [
            series.points[0][0] for series in answers.curves(each["expr"]) if series.points
        ]
        for each in made["annotations"]["list"]
    }


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit, as a panel with one number shows it."""
    factor, name = SCALES.get(unit, (1.0, ""))
    return f"{factor * value:.4g} {name}".strip()


def _colour(value: float, steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the colour of a number by the thresholds of its panel."""
    name = [each["color"] for each in steps if each["value"] is None or value >= each["value"]][-1]
    return {"red": BAD, "green": GOOD}.get(name, PLAIN)


def smaller(picture: io.BytesIO) -> bytes:
    """Return a PNG with a palette, a third of its size; no colour changes visibly."""
    from PIL import Image  # matplotlib needs it

    image = Image.open(picture).convert("RGB")
    covering, no_dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
    small = io.BytesIO()
    image.quantize(PALETTE, covering, dither=no_dither).save(small, "PNG", optimize=True)
    return small.getvalue()


def caption(answers: Answers) -> str:
    """Return the run and the time that pictures show, for people."""
    end = datetime.fromtimestamp(answers.to_s, UTC)
    minutes = (answers.to_s - answers.from_s) / 60
    return f"run {answers.run}, {minutes:.3g} minutes until {end:%Y-%m-%d %H:%M} UTC"
