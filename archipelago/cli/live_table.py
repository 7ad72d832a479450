"""The live table of a run: its islands and its fragments.

`render` is a pure function; `archipelago.cli.display` puts its result on a console.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from archipelago.cli import link_lines
from archipelago.cli.formatting import GAP, WIDTH, amount, duration, number, sparkline
from archipelago.cli.status_lines import (
    damage_of,
    judging_progress,
    participants,
    why_not_durable,
)
from cluster.status import FragmentStatus, IslandStatus, RunStatus

BAR = 30
"""The width of the progress bar of t, in characters."""
ROWS_IN_FULL = 8
"""The most fragments that get a line each; more of them share lines."""
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


def render(status: RunStatus) -> RenderableType:
    """Return the live table: the run, its islands, its fragments; at most `WIDTH` characters."""
    return Group(
        _header(status),
        _figures(status),
        Text(),
        _islands(status["islands"]),
        Text(),
        _fragments(status),
        *(Text(f"ALERT: {alert}", "bold red") for alert in status.get("alerts", ())),
    )


def _header(status: RunStatus) -> RenderableType:
    t, steps, phase = status["t"], status["steps"], status["phase"]
    left_s = status["left_s"]
    left = "" if phase == "finished" else "left ?" if left_s is None else f"left {duration(left_s)}"
    grid = Table.grid(Column(), Column(), Column(width=BAR), Column(), padding=(0, GAP, 0, 0))
    grid.add_row(
        Text.assemble((status["run"], "bold"), " ", (phase, PHASE_STYLE[phase])),
        Text.assemble("t ", (str(t).rjust(len(str(steps))), "bold"), f"/{steps}"),
        ProgressBar(
            total=steps,
            completed=min(t, steps),
            width=BAR,
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
    if judging := judging_progress(status):
        lines.append(Text(judging, style="cyan"))
    if reason := why_not_durable(status):
        lines.append(Text(f"not durable: {reason}", style="bold red"))
    if damage := damage_of(status):
        lines.append(Text(f"damaged when the run came back: {damage}", style="yellow"))
    lines.extend(Text(trouble, style="yellow") for trouble in link_lines.troubles(status))
    return Group(*lines)


def _fact(label: str, value: str, style: str = "") -> tuple[tuple[str, str], ...]:
    return ((f"{label} ", "dim"), (value, f"bold {style}".strip()), ("   ", ""))


def _islands(islands: Sequence[IslandStatus]) -> Table:
    table = _table(
        Column("island", min_width=10, max_width=24, no_wrap=True),
        Column("state", width=11),
        Column("life", justify="right"),
        Column("steps", justify="right", min_width=6),
        Column("tokens/s", justify="right", min_width=8),
        Column("loss", justify="right", min_width=6),
        Column("why", ratio=1, no_wrap=True, overflow="ellipsis"),
    )
    for island in islands:
        style = STATE_STYLE[island["state"]]
        is_away = island["state"] in ("lost", "left")
        life, loss = island["life"], island["loss"]
        table.add_row(
            island["island"],
            Text(island["state"], style=style),
            Text(str(life) if life else "-", style="yellow" if life > 1 else ""),
            str(island["steps"]),
            "-" if is_away else amount(island["tokens_per_s"]),
            "-" if loss is None or is_away else f"{loss:.3f}",
            Text(island["why"], style="" if is_away else "dim"),
            style=style if is_away else "",
        )
    return table


def _fragments(status: RunStatus) -> RenderableType:
    """Return a line for each fragment, with reasons; many fragments get marks and share lines."""
    fragments = status["fragments"]
    names = [island["island"] for island in status["islands"]]
    if len(fragments) <= ROWS_IN_FULL:
        table = _table(
            Column("fragment", justify="right"),
            Column("version", justify="right"),
            Column("last merge", no_wrap=True, min_width=len(names) + len(" 99 of 99")),
            Column("open round", ratio=1, no_wrap=True, overflow="ellipsis"),
        )
        for fragment in fragments:
            table.add_row(
                str(fragment["fragment"]),
                f"v{fragment['version']}",
                _participants(fragment, names),
                _round(fragment),
            )
        return table
    cell = len("p99 v999 ") + len(names) + len(" 99/99")
    columns = max(1, (WIDTH + GAP) // (cell + GAP))
    rows = -(-len(fragments) // columns)
    table = Table.grid(
        *(Column(width=cell, no_wrap=True) for _ in range(columns)), padding=(0, GAP, 0, 0)
    )
    for row in range(rows):
        table.add_row(*(_mark(fragment, names) for fragment in fragments[row::rows]))
    title = "fragments: version, islands in the last merge, arrived in the open round"
    return Group(Text(title, style="dim"), table)


def _mark(fragment: FragmentStatus, names: Sequence[str]) -> Text:
    now = fragment["round"]
    return Text.assemble(
        (f"{'p' + str(fragment['fragment']):>3} ", "dim"),
        f"{'v' + str(fragment['version']):<5}",
        _dots(fragment, names),
        (f" {now['arrived']}/{now['asked']}" if now else "", "yellow"),
    )


def _participants(fragment: FragmentStatus, names: Sequence[str]) -> Text:
    if not fragment["version"]:
        return Text("-", style="dim")
    count = len(fragment["participants"])
    return Text.assemble(_dots(fragment, names), f" {count} of {len(names)}")


def _dots(fragment: FragmentStatus, names: Sequence[str]) -> Text:
    """Return a mark for each island, in the order of the island table: its part in the merge."""
    contributors = set(fragment["participants"])
    return Text.assemble(
        *(("●", "green") if name in contributors else ("·", "dim") for name in names)
    )


def _round(fragment: FragmentStatus) -> Text:
    now = fragment["round"]
    if now is None:
        return Text()
    arrived = (f"{now['arrived']} of {now['asked']} arrived", "yellow")
    return Text.assemble(arrived, (f"  {now['why']}", "dim"))


def _table(*columns: Column) -> Table:
    return Table(
        *columns, box=None, width=WIDTH, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim"
    )
