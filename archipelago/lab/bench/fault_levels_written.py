"""The files of `bench faults --levels --out DIR`: JSON, CSV and pictures of the same rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archipelago.lab.planner.pictures import COLOURS, INK, picture
from cluster.storage.files import json_text
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "faults"
"""The name of each file, before its ending."""
LABELS = {
    "decoupled": "decoupled",
    "elastic-data-parallel": "elastic data-parallel",
    "data-parallel": "data-parallel",
}
"""The names of the modes in the legend, in its order."""


def check(folder: Path) -> None:
    """Check that the files can be written, before minutes are spent on their figures.

    Errors: `UserMistake`.
    """
    problems = list[str]()
    if find_spec("matplotlib") is None:
        problems.append("pictures need matplotlib, an optional extra: pip install matplotlib")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problems.append(f"{folder} cannot be made: {error.strerror}; name another folder")
    if problems:
        raise UserMistake(f"--out: {'; '.join(problems)}")


def write(folder: Path, figures: Mapping[str, object]) -> list[Path]:
    """Write `faults.json`, `faults.csv` and two pictures; return the files.

    `figures`: those of `fault_levels.fault_levels`, or of an earlier `faults.json`.

    Errors: `OSError`.
    """
    rows = figures["rows"]
    assert isinstance(rows, list)
    made = {"json": json_text(figures) + "\n", "csv": csv_text(rows)}
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{NAME}.{ending}" for ending in made]
    for path, text in zip(files, made.values(), strict=True):
        path.write_text(text)
    for mode in INK:
        path = folder / f"{NAME}-{mode}.svg"
        with picture(mode, path) as figure:
            draw(figure, figures, rows)
        files.append(path)
    return files


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the rows as CSV, with a line of names; a value that is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def draw(figure: Figure, figures: Mapping[str, object], rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw goodput against the level: points are measured on Ray, lines are simulated."""
    axes = figure.subplots()
    colours = (COLOURS[3], COLOURS[4], COLOURS[0])
    for (mode, label), colour in zip(LABELS.items(), colours, strict=True):
        own = sorted((row for row in rows if row["mode"] == mode), key=lambda row: row["level"])
        levels = [row["level"] for row in own]
        measured, simulated = ([100 * row[key] for row in own] for key in ("goodput", "simulated"))
        axes.plot(levels, simulated, "-", color=colour, linewidth=1.6, label=f"{label}, simulated")
        axes.plot(levels, measured, "o", color=colour, markersize=5, label=f"{label}, on Ray")
    axes.set(xlabel="kills per island and minute", ylabel="goodput, %", ylim=(0, 105))
    figure.suptitle(
        f"Goodput of {figures['islands']} islands against failures: points on Ray, lines simulated"
    )
    figure.legend(loc="outside lower center", ncols=len(LABELS))
