"""A report as one HTML file, which needs no other file and no network."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from archipelago.lab.report.contents import ReportChart, ReportContents, figure_text

PACKAGE = "archipelago.lab.report"
"""The package with the template and the script of the page."""


def page(report: ReportContents) -> str:
    """Return the report as HTML; all text of the report is escaped.

    The page allows only its own scripts, by their digests, and loads nothing.
    """
    charts = [chart for section in report.sections for chart in section.charts]
    numbers = {id(chart): number for number, chart in enumerate(charts)}
    uplot = files("cluster").joinpath("assets", "uplot")
    scripts = {
        "uplot": uplot.joinpath("uPlot.iife.min.js").read_text(encoding="utf-8"),
        "draw": files(PACKAGE).joinpath("draw.js").read_text(encoding="utf-8"),
    }
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = files(PACKAGE).joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        report=report,
        policy=Markup(" ".join(_digest(each) for each in scripts.values())),
        uplot_css=Markup(uplot.joinpath("uPlot.min.css").read_text(encoding="utf-8")),
        charts=[_plain(chart) for chart in charts],
        number=lambda chart: numbers[id(chart)],
        spoken=_spoken,
        **{name: Markup(text) for name, text in scripts.items()},
    )


def _digest(script: str) -> str:
    """Return the source of a script in a content security policy."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _plain(chart: ReportChart) -> dict[str, Any]:
    series = [
        {
            "label": each.label,
            "x": [*each.x],
            "y": [*each.y],
            "colour": each.colour,
            "reference": each.reference,
        }
        for each in chart.series
    ]
    marks = [{"x": x, "colour": colour} for x, colour in chart.marks]
    return {"x_label": chart.x_label, "series": series, "marks": marks}


def _spoken(chart: ReportChart) -> str:
    """Return a chart in words, for readers that do not see it: both ends of each curve."""
    ends: list[str] = []
    for each in chart.series:
        known = [y for y in each.y if y is not None]
        ends.append(f"{each.label} from {figure_text(known[0])} to {figure_text(known[-1])}")
    return f"{chart.title} against {chart.x_label}: {'; '.join(ends)}"
