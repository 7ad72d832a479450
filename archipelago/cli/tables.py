"""The tables at the end of a run and of a bench."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from archipelago.cli.formatting import (
    GAP,
    by_region,
    duration_or_dash,
    number,
    percent,
    seconds_or_dash,
)
from islands.time_budget import added, shares

SHARE_BAR = 6
"""The width of a bar that shows a share, in characters."""
LEAST_SHARE = 0.0005
"""The least share of the time that has a line."""
FATES = (
    ("merged", "in the model", "green"),
    ("discarded", "overwritten, stale", "yellow"),
    ("outstanding", "not handed in", "cyan"),
    ("lost", "died with a learner", "red"),
)
"""The fates of a token, each with its meaning and color; they add up to the tokens trained."""
Summary: TypeAlias = Mapping[str, Any]
"""The content of `summary.json`: plain JSON, null for a figure that was not measured."""
FigureRow: TypeAlias = tuple[str, RenderableType, RenderableType]
"""A row: the label, the figure, the meaning of the figure."""


def summary_table(summary: Summary) -> RenderableType:
    """Return the figures of a summary, grouped; a figure that was not measured has a dash."""
    table = Table.grid(
        Column(style="bold", width=8, no_wrap=True),
        Column(width=16, no_wrap=True),
        Column(justify="right", width=13, no_wrap=True),
        Column(style="dim"),
        padding=(0, GAP, 0, 0),
    )
    sections: dict[str, Iterable[FigureRow]] = {
        "learning": _learning(summary),
        "tokens": _fates(summary),
        "merging": _merging(summary),
        "recovery": _recovery(summary),
        "time": _time(summary),
        "wire": _wire(summary),
    }
    for name, rows in sections.items():
        for index, row in enumerate(rows):
            if index == 0:
                table.add_row()
            table.add_row("" if index else name, *row)
    return table


def _learning(summary: Summary) -> Iterator[FigureRow]:
    initial, final = summary.get("initial_heldout_loss"), summary.get("heldout_loss")
    yield "held-out loss", Text(number(final, 4), "bold green"), "nats per token, global model"
    if (sample := summary.get("sample_heldout_loss")) is not None:
        yield "  of the sample", number(sample, 4), "the windows that it showed while it ran"
    if regions := by_region(summary.get("heldout_by_region"), 4):
        yield "  by region", regions, "on held-out text of each region"
    yield "  at the start", number(initial, 4), "of the initial model"
    wall_s, trained = summary.get("wall_s"), summary.get("tokens_trained")
    yield "wall time", duration_or_dash(wall_s), ""
    speed = trained / wall_s if trained is not None and wall_s else None
    yield "speed", number(speed, 0), "tokens per second of wall time, starts included"
    digest = summary.get("global_sha256")
    yield "global model", digest[:12] if digest else "-", "its sha256, the first digits"


def _fates(summary: Summary) -> Iterator[FigureRow]:
    trained = summary.get("tokens_trained")
    yield "trained", number(trained, 0), ""
    for fate, note, style in FATES:
        tokens = summary.get(f"tokens_{fate}")
        share = tokens / trained if tokens is not None and trained else None
        filled = "█" * round((share or 0) * SHARE_BAR)
        meaning = Text.assemble(
            f"{percent(share):>6}  ",
            (filled, style),
            " " * (SHARE_BAR - len(filled)),
            f"  {note}",
        )
        yield f"  {fate}", number(tokens, 0), meaning


def _merging(summary: Summary) -> Iterator[FigureRow]:
    yield "merges", number(summary.get("merges"), 0), "outer steps, over all fragments"
    yield "participants", number(summary.get("mean_participants"), 2), "islands in a merge, mean"
    yield "longest gap", seconds_or_dash(summary.get("max_merge_gap_s")), "between two merges"
    refused = number(summary.get("rejected_contributions"), 0)
    yield "refused", refused, "contributions that the gate refused"


def _recovery(summary: Summary) -> Iterator[FigureRow]:
    faults = summary.get("faults")
    yield "faults", Text(number(faults, 0), "red" if faults else ""), "broken on purpose"
    failures: Mapping[str, int] = summary.get("failures") or {}
    if failures:
        reasons = ", ".join(f"{count} in {reason}" for reason, count in failures.items())
        yield "failures", Text(number(sum(failures.values()), 0), "red"), reasons
    recovery_s = summary.get("recovery_s")
    for took_s in recovery_s or [None]:
        if recovery_s or faults or recovery_s is None:
            yield (
                "back after",
                seconds_or_dash(took_s),
                "from the fault to its next accepted contribution",
            )
    yield "goodput", percent(summary.get("goodput")), "of the islands' time went into training"
    yield "uptime", percent(summary.get("uptime")), "of the time some island advanced"


def _time(summary: Summary) -> Iterator[FigureRow]:
    """Yield the share of each activity in the time of all islands, the largest first."""
    found = shares(added(*(summary.get("island_seconds") or {}).values()))
    for activity, share in sorted(found.items(), key=lambda each: -each[1]):
        if share >= LEAST_SHARE:
            yield activity, percent(share), "of the islands' time with their devices"


def _wire(summary: Summary) -> Iterator[FigureRow]:
    yield "up", number(summary.get("up_bytes_per_token"), 2), "bytes per trained token"
    yield "down", number(summary.get("down_bytes_per_token"), 2), "bytes per trained token"


def figures_table(figures: Mapping[str, Any]) -> RenderableType:
    """Return the figures of a bench, each with its interval if it has one."""
    table = Table.grid(padding=(0, GAP, 0, 0))
    for name, value in figures.items():
        if name.endswith(("_low", "_high")):
            continue
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        spread = ""
        if f"{name}_low" in figures:
            spread = f"{figures[f'{name}_low']:.4g} to {figures[f'{name}_high']:.4g}"
        table.add_row(name, Text(shown, "bold"), Text(spread, "dim"))
    return table


def rows_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return the figures of several cases of a bench, one case in each column."""
    table = Table.grid(padding=(0, GAP, 0, 0))
    for name in rows[0]:
        shown = [f"{v:.4g}" if isinstance(v := row[name], float) else str(v) for row in rows]
        table.add_row(name, *(Text(text, "bold", justify="right") for text in shown))
    return table
