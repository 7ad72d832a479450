"""The live table of a run: its islands and its fragments.

`render` is a pure function; `archipelago.cli.display` puts its result on a console.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from archipelago.cli import link_lines
from archipelago.cli.formatting import GAP, WIDTH, amount, by_region, duration, number, sparkline
from archipelago.cli.fragment_lines import fragment_lines
from archipelago.cli.status_lines import (
    damage_of,
    harmful_islands,
    judging_progress,
    participants,
    why_not_durable,
)
from archipelago.cli.table_view import TableView
from cluster.status import IslandStatus, RunStatus
from islands.time_budget import Activity, shares

BAR = 30
"""The width of the progress bar of t, in characters."""
NARROW = 90
"""Columns below which the table leaves figures out."""
STATE_STYLE = {
    "waiting": "yellow",
    "set aside": "bold red",
    "starting": "yellow",
    "joining": "yellow",
    "live": "green",
    "draining": "cyan",
    "quarantined": "magenta",
    "lost": "red",
    "left": "dim",
}
PHASE_STYLE = {
    "starting": "yellow",
    "running": "green",
    "stopping": "cyan",
    "finished": "bold green",
}


TIME_TITLES = {
    Activity.COMPUTING: "comp", Activity.DATA: "data", Activity.COPYING: "copy",
    Activity.WAITING: "wait", Activity.STARTING: "start", Activity.COMPILING: "jit",
    Activity.RESTORING: "rest", Activity.IDLE: "idle", Activity.DEAD: "dead",
}  # fmt: skip
"""The titles of the columns of the time table."""


def render(
    status: RunStatus, *, width: int = WIDTH, view: TableView | None = None
) -> RenderableType:
    """Return the live table: the run, its islands, its fragments; at most `width` characters."""
    view, width, islands = view or TableView(), min(width, WIDTH), status["islands"]
    names = [island["island"] for island in islands]
    shown = view.visible(islands)
    parts: list[RenderableType] = [
        _header(status, width),
        _figures(status),
        Text(),
        time_table(shown, width) if view.time else _islands(shown, width),
    ]
    if note := view.note(islands):
        parts.append(Text(note, style="dim", no_wrap=True, overflow="ellipsis"))
    parts += [Text(), fragment_lines(status["fragments"], names, width, whole=view.fragments)]
    parts += [Text(f"ALERT: {alert}", "bold red") for alert in status.get("alerts", ())]
    return Group(*parts)


def _header(status: RunStatus, width: int) -> RenderableType:
    t, steps, phase = status["t"], status["steps"], status["phase"]
    left_s = status["left_s"]
    left = "" if phase == "finished" else "left ?" if left_s is None else f"left {duration(left_s)}"
    bar = BAR if width >= NARROW else BAR // 2
    grid = Table.grid(Column(), Column(), Column(width=bar), Column(), padding=(0, GAP, 0, 0))
    grid.add_row(
        Text.assemble((status["run"], "bold"), " ", (phase, PHASE_STYLE[phase])),
        Text.assemble("t ", (str(t).rjust(len(str(steps))), "bold"), f"/{steps}"),
        ProgressBar(
            total=steps,
            completed=min(t, steps),
            width=bar,
            complete_style="green",
            finished_style="green",
        ),
        Text(f"{duration(status['elapsed_s'])}  {left}", style="dim"),
    )
    return grid


def _figures(status: RunStatus) -> RenderableType:
    history = [loss for _, loss in status["heldout"]]
    alive, total = status["alive"], len(status["islands"])
    loss = Text.assemble(
        ("held-out ", "dim"),
        (number(history[-1], 3) if history else "-", "bold"),
        (f"  {sparkline(history)}", "cyan"),
        ("  of a sample", "dim") if history else "",
        _expected(status),
    )
    facts = Text.assemble(
        *_fact("merges", str(status["merges"])),
        *_fact("participants", participants(status) if status["merges"] else "-"),
        *_fact("alive", f"{alive} of {total}", "" if alive == total else "red"),
        *_fact("tokens", amount(status["tokens_trained"])),
        *_fact("per s", amount(status["tokens_per_s"])),
        *_fact("faults", str(status["faults"]), "red" if status["faults"] else ""),
    )
    lines: list[RenderableType] = [facts, loss]
    if regions := by_region(status.get("heldout_by_region")):
        lines.append(Text(f"by region {regions}", style="dim"))
    if judging := judging_progress(status):
        lines.append(Text(judging, style="cyan"))
    if reason := why_not_durable(status):
        lines.append(Text(f"not durable: {reason}", style="bold red"))
    if damage := damage_of(status):
        lines.append(Text(f"damaged when the run came back: {damage}", style="yellow"))
    troubles = [*harmful_islands(status), *link_lines.troubles(status)]
    lines.extend(Text(trouble, style="yellow") for trouble in troubles)
    return Group(*lines)


def _expected(status: RunStatus) -> tuple[str, str]:
    """Return the expected loss and its band as styled text; empty if nothing is expected."""
    if (expected := status.get("expected")) is None:
        return "", ""
    band = f"{number(expected['low'], 3)} to {number(expected['high'], 3)}"
    style = "dim" if expected["inside"] else "bold red"
    return f"  {'inside' if expected['inside'] else 'outside'} expected {band}", style


def _fact(label: str, value: str, style: str = "") -> tuple[tuple[str, str], ...]:
    return ((f"{label} ", "dim"), (value, f"bold {style}".strip()), ("   ", ""))


def _islands(islands: Sequence[IslandStatus], width: int) -> Table:
    wide = width >= NARROW
    timed = any(island.get("recent_s") for island in islands)
    columns = [
        Column("island", min_width=10, max_width=24 if wide else 14, no_wrap=True),
        Column("state", width=11),
        *([Column("life", justify="right")] if wide else []),
        Column("steps", justify="right", min_width=6),
        Column("tokens/s" if wide else "tok/s", justify="right", min_width=8 if wide else 5),
        Column("loss", justify="right", min_width=6),
        *([Column("comp", justify="right", width=4)] if timed else []),
        Column("why", ratio=1, no_wrap=True, overflow="ellipsis"),
    ]
    table = _table(columns, width)
    for island in islands:
        style = STATE_STYLE[island["state"]]
        is_away = island["state"] in ("lost", "left")
        life, loss = island["life"], island["loss"]
        cells = [
            island["island"],
            Text(island["state"], style=style),
            *([Text(str(life) if life else "-", style="yellow" if life > 1 else "")] * wide),
            str(island["steps"]),
            "-" if is_away else amount(island["tokens_per_s"]),
            "-" if loss is None or is_away else f"{loss:.3f}",
            *([_share(shares(island.get("recent_s", {})), Activity.COMPUTING)] * timed),
            Text(island["why"], style=_why_style(island)),
        ]
        table.add_row(*cells, style=style if is_away else "")
    return table


def _why_style(island: IslandStatus) -> str:
    if island["state"] in ("lost", "left"):
        return ""
    return "yellow" if "slow," in island["why"] else "dim"


def _share(found: Mapping[str, float], activity: Activity) -> Text:
    if activity not in found:
        return Text("-", style="dim")
    return Text(f"{100 * found[activity]:.0f}%", style="" if found[activity] >= 0.005 else "dim")


def time_table(islands: Sequence[IslandStatus], width: int) -> Table:
    """Return the share of each activity in the time of each island, in per cent."""
    titles = [Column(title, justify="right", width=5) for title in TIME_TITLES.values()]
    name = Column("island", min_width=10, max_width=14, no_wrap=True)
    table = _table([name, Column("life", justify="right", min_width=7), *titles], width, gap=1)
    for island in islands:
        found, life_s = shares(island.get("time_s", {})), island.get("life_s")
        cells = [_share(found, activity) for activity in TIME_TITLES]
        table.add_row(island["island"], "-" if life_s is None else duration(life_s), *cells)
    return table


def _table(columns: Sequence[Column], width: int, gap: int = GAP) -> Table:
    return Table(
        *columns, box=None, width=width, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim"
    )
