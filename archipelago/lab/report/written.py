"""Reports as files: HTML of a limited size, or Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from archipelago.lab.report.contents import ReportContents
from archipelago.lab.report.curves import POINTS
from archipelago.lab.report.markdown import markdown
from archipelago.lab.report.page import page
from archipelago.lab.report.run_record import RunRecord
from archipelago.lab.report.run_report import read_runs, report_of
from archipelago.lab.report.study_report import study_report
from archipelago.lab.study.result import Result
from cluster.storage.files import write_soon
from coordinator.errors import UserMistake

LARGEST_BYTES = 2 * 10**6
"""The largest size of a report."""
FEWEST_POINTS = 25
"""The fewest points of a curve to which a report is thinned out."""


class ReportFormat(StrEnum):
    """The format of a report."""

    HTML = "html"
    MARKDOWN = "md"


def formatted(make: Callable[[int], ReportContents], form: ReportFormat) -> str:
    """Return a report as text; an HTML file that is too large has fewer points, then fewer parts.

    `make`: returns the report with this many points in a curve.
    """
    if form is ReportFormat.MARKDOWN:
        return markdown(make(FEWEST_POINTS))
    points = POINTS
    text = page(make(points))
    while len(text.encode()) > LARGEST_BYTES and points > FEWEST_POINTS:
        points //= 2
        text = page(make(points))
    if len(text.encode()) > LARGEST_BYTES:
        report = make(points)
        report = replace(report, sections=[each for each in report.sections if not each.long])
        text = page(report)
    return text


def report_text(
    run_dirs: Sequence[Path], form: ReportFormat, now: datetime
) -> tuple[str, list[RunRecord]]:
    """Return the report of runs as text, and their records."""
    records = read_runs(run_dirs)
    return formatted(lambda points: report_of(records, now, points), form), records


def write_run_report(run_dir: Path, now: datetime) -> Path:
    """Write `report.html` to a run directory, and return its path.

    Errors: `UserMistake` if it cannot be written.
    """
    text, _ = report_text([run_dir], ReportFormat.HTML, now)
    return write_report(run_dir / "report.html", text)


def write_study_report(result: Result, folder: Path, now: datetime) -> Path:
    """Write `report.html` of a study to its folder, and return its path.

    Errors: `UserMistake` if it cannot be written.
    """
    text = formatted(lambda points: study_report(result, now, points), ReportFormat.HTML)
    return write_report(folder / "report.html", text)


def write_report(path: Path, text: str) -> Path:
    """Write a report, and return its path.

    Errors: `UserMistake` if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_soon(path, text.encode())
    except OSError as error:
        raise UserMistake(f"{path} cannot be written: {error.strerror}") from error
    return path
