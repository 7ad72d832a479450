"""The output of a bench: its figures as JSON, or as tables beside their goals."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from archipelago.cli.tables import figures_table, rows_table
from archipelago.lab.bench.goals import GOALS, verdict
from cluster.storage.files import json_text


def tell(bench: str, figures: Mapping[str, object], talk: Console, *, as_json: bool) -> None:
    """Print figures as one JSON object, or as tables with their goals on the console `talk`."""
    if as_json:
        print(json_text(figures))
        return
    parts = {k: v for k, v in figures.items() if isinstance(v, dict)}
    talk.print(figures_table({k: v for k, v in figures.items() if k not in {"rows", *parts}}))
    for name, part in parts.items():
        talk.print(f"[bold]{name}")
        talk.print(figures_table(part))
    for name, goal in GOALS.get(bench, {}).items():
        if name in figures:
            talk.print(f"{name}: {goal}: {verdict(goal, name, figures)}")
    rows = figures.get("rows")
    if isinstance(rows, list) and rows:
        talk.print(rows_table(rows))
