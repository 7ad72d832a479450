"""What a person sees of a run: a live table, lines for what happens, the summary at the end.

`render`, `line`, `announce` and `summary_table` are pure; `Display` puts them on a console.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from types import TracebackType
from typing import Any, Self, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from cluster.status import FragmentStatus, IslandStatus, Phase, Status

WIDTH = 100  # columns of the widest thing shown
GAP = 2  # columns between two columns
BAR = 30  # columns of the bar of t
SPARKS = "▁▂▃▄▅▆▇█"
SPARKLINE = 24  # columns of the held-out history
NAMES = 3  # islands named in one announcement before they are only counted
LINE_EVERY_S = 5.0  # between two plain lines, where there is no terminal
SHARE_BAR = 6  # columns of a bar that shows a share
NOT_FINITE = "not finite"
NEARLY = 0.9995  # of a unit: from here on three digits round up to it
ROWS_IN_FULL = 8  # fragments that get a line each; more of them share lines

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


# --- while the run goes on ------------------------------------------------------------------------


def render(status: Status) -> RenderableType:
    """The live table: the run, its islands, its fragments; at most `WIDTH` columns."""
    return Group(
        _header(status),
        _figures(status),
        Text(),
        _islands(status["islands"]),
        Text(),
        _fragments(status),
    )


def line(status: Status) -> str:
    """The same in one line of ASCII, for a log."""
    heldout = status["heldout"]
    parts = [
        duration(status["elapsed_s"]),
        status["phase"],
        f"t {status['t']}/{status['steps']}",
        f"held-out {_number(heldout[-1][1], 3) if heldout else '-'}",
        f"merges {status['merges']}",
        f"participants {status['participants']:.1f} of {status['alive']} alive",
        f"tokens {amount(status['tokens_trained'])}, {amount(status['tokens_per_s'])}/s",
        "left -" if status["left_s"] is None else f"left {duration(status['left_s'])}",
    ]
    if away := [f"{i['island']} {i['state']}" for i in status["islands"] if i["state"] != "live"]:
        parts.append(", ".join(away))
    return "  ".join(parts)


def announce(before: Status | None, after: Status) -> list[str]:
    """What happened between two looks at a run, a line each, stamped with the run's own time."""
    stamp = duration(after["elapsed_s"])
    happened = [*_of_the_run(before, after), *_of_the_islands(before, after)]
    return [f"{stamp}  {text}" for text in happened]


def _of_the_run(before: Status | None, after: Status) -> Iterator[str]:
    phases: dict[Phase, str] = {
        "starting": f"{after['run']} is starting {after['wanted']} islands",
        "running": f"{after['run']} is running",
        "stopping": "stopping: each fragment has its last round",
        "finished": f"finished at t {after['t']} after {after['merges']} merges",
    }
    if before is None or before["phase"] != after["phase"]:
        yield phases[after["phase"]]
    was, now = _not_durable(before), _not_durable(after)
    if was != now:
        yield f"not durable: {now}" if now else "durable again"


def _not_durable(status: Status | None) -> str:
    return status["figures"]["not_durable"] if status and status["figures"] else ""


def _of_the_islands(before: Status | None, after: Status) -> Iterator[str]:
    known = {i["island"]: i for i in before["islands"]} if before else {}
    now = {i["island"]: i for i in after["islands"]}
    alike: dict[str, list[str]] = defaultdict(list)
    for name, island in now.items():
        for text in _changes(known.get(name), island):
            alike[text].append(name)
    for name in known:
        if name not in now:
            alike["gone from the run"].append(name)
    for text, names in alike.items():
        yield f"{_who(names)} {text}"


def _who(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"island {names[0]} is"
    if len(names) <= NAMES:
        return f"islands {', '.join(names)} are"
    return f"{len(names)} islands are"


def _changes(was: IslandStatus | None, now: IslandStatus) -> Iterator[str]:
    if was and was["state"] == now["state"] and was["life"] == now["life"]:
        return
    because = f": {now['why']}" if now["why"] else ""
    match now["state"]:
        case "live":
            yield "live" if now["life"] <= 1 else f"back as life {now['life']}"
        case "lost" | "quarantined" | "draining" | "waiting" | "set aside":
            yield f"{now['state']}{because}"
        case "left":
            yield "drained and gone"
        case "starting" | "joining":
            if was and was["state"] == "live":
                yield f"{now['state']} again{because}"


def _header(status: Status) -> RenderableType:
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


def _figures(status: Status) -> RenderableType:
    history = [loss for _, loss in status["heldout"]]
    alive, total = status["alive"], len(status["islands"])
    loss = Text.assemble(
        ("held-out ", "dim"),
        (_number(history[-1], 3) if history else "-", "bold"),
        (f"  {sparkline(history)}", "cyan"),
        ("  of a sample", "dim") if history else "",
    )
    facts = Text.assemble(
        *_fact("merges", str(status["merges"])),
        *_fact("participants", f"{status['participants']:.1f}" if status["merges"] else "-"),
        *_fact("alive", f"{alive} of {total}", "" if alive == total else "red"),
        *_fact("tokens", amount(status["tokens_trained"])),
        *_fact("per s", amount(status["tokens_per_s"])),
        *_fact("faults", str(status["faults"]), "red" if status["faults"] else ""),
    )
    if why := _not_durable(status):
        return Group(facts, loss, Text(f"not durable: {why}", style="bold red"))
    return Group(facts, loss)


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
        away = island["state"] in ("lost", "left")
        life, loss = island["life"], island["loss"]
        table.add_row(
            island["island"],
            Text(island["state"], style=style),
            Text(str(life) if life else "-", style="yellow" if life > 1 else ""),
            str(island["steps"]),
            "-" if away else amount(island["tokens_per_s"]),
            "-" if loss is None or away else f"{loss:.3f}",
            Text(island["why"], style="" if away else "dim"),
            style=style if away else "",
        )
    return table


def _fragments(status: Status) -> RenderableType:
    """A line each, with the reasons; where there are many, only marks, several to a line."""
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
    across = max(1, (WIDTH + GAP) // (cell + GAP))
    deep = -(-len(fragments) // across)
    table = Table.grid(
        *(Column(width=cell, no_wrap=True) for _ in range(across)), padding=(0, GAP, 0, 0)
    )
    for row in range(deep):
        table.add_row(*(_mark(fragment, names) for fragment in fragments[row::deep]))
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
    """One mark per island, in the order of the table above: who took part in the last merge."""
    took_part = set(fragment["participants"])
    return Text.assemble(*(("●", "green") if name in took_part else ("·", "dim") for name in names))


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


class Display:
    """Shows each status that it is given: live on a terminal, else a plain line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._last: Status | None = None
        self._line_due_s = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, status: Status) -> None:
        for text in announce(self._last, status):
            self._say(text)
        if self._live:
            self._live.update(render(status), refresh=True)
        elif status["elapsed_s"] >= self._line_due_s:
            self._say(line(status))
            self._line_due_s = status["elapsed_s"] + LINE_EVERY_S
        self._last = status

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


# --- at the end -----------------------------------------------------------------------------------

FATES = (
    ("merged", "in the model", "green"),
    ("discarded", "overwritten, stale", "yellow"),
    ("outstanding", "not handed in", "cyan"),
    ("lost", "died with a learner", "red"),
)
"""What becomes of a token, with what that means; they add up to those trained."""

Summary: TypeAlias = Mapping[str, Any]
"""`summary.json`: plain JSON; null for what was not measured."""
Row: TypeAlias = tuple[str, RenderableType, RenderableType]
"""What it is called, the figure, what the figure means."""


def summary_table(summary: Summary) -> RenderableType:
    """The figures that a run ends with, grouped; what was not measured has a dash."""
    table = Table.grid(
        Column(style="bold", width=8, no_wrap=True),
        Column(width=16, no_wrap=True),
        Column(justify="right", width=13, no_wrap=True),
        Column(style="dim"),
        padding=(0, GAP, 0, 0),
    )
    sections: dict[str, Iterable[Row]] = {
        "learning": _learning(summary),
        "tokens": _fates(summary),
        "merging": _merging(summary),
        "recovery": _recovery(summary),
        "wire": _wire(summary),
    }
    for name, rows in sections.items():
        table.add_row()
        for index, row in enumerate(rows):
            table.add_row("" if index else name, *row)
    return table


def _learning(summary: Summary) -> Iterator[Row]:
    initial, final = summary.get("initial_heldout_loss"), summary.get("heldout_loss")
    yield "held-out loss", Text(_number(final, 4), "bold green"), "nats per token, global model"
    if (sample := summary.get("sample_heldout_loss")) is not None:
        yield "  of the sample", _number(sample, 4), "the windows that it showed while it ran"
    yield "  at the start", _number(initial, 4), "ln(vocabulary) when nothing is known"
    wall_s, trained = summary.get("wall_s"), summary.get("tokens_trained")
    yield "wall time", _duration(wall_s), ""
    speed = trained / wall_s if trained is not None and wall_s else None
    yield "speed", _number(speed, 0), "tokens per second, all islands"
    digest = summary.get("global_sha256")
    yield "global model", digest[:12] if digest else "-", "its sha256, the first digits"


def _fates(summary: Summary) -> Iterator[Row]:
    trained = summary.get("tokens_trained")
    yield "trained", _number(trained, 0), ""
    for fate, note, style in FATES:
        tokens = summary.get(f"tokens_{fate}")
        share = tokens / trained if tokens is not None and trained else None
        filled = "█" * round((share or 0) * SHARE_BAR)
        meaning = Text.assemble(
            f"{_percent(share):>6}  ",
            (filled, style),
            " " * (SHARE_BAR - len(filled)),
            f"  {note}",
        )
        yield f"  {fate}", _number(tokens, 0), meaning


def _merging(summary: Summary) -> Iterator[Row]:
    yield "merges", _number(summary.get("merges"), 0), "outer steps, over all fragments"
    yield "participants", _number(summary.get("mean_participants"), 2), "islands in a merge, mean"
    yield "longest gap", _seconds(summary.get("max_merge_gap_s")), "between two merges"
    refused = _number(summary.get("rejected_contributions"), 0)
    yield "refused", refused, "contributions that the gate turned away"


def _recovery(summary: Summary) -> Iterator[Row]:
    faults = summary.get("faults")
    yield "faults", Text(_number(faults, 0), "red" if faults else ""), ""
    recovery_s = summary.get("recovery_s")
    for took_s in recovery_s or [None]:
        if recovery_s or faults or recovery_s is None:
            yield "back after", _seconds(took_s), "from the fault to its next accepted contribution"
    yield "goodput", _percent(summary.get("goodput")), "of the islands' time went into training"
    yield "uptime", _percent(summary.get("uptime")), "of the time some island advanced"


def _wire(summary: Summary) -> Iterator[Row]:
    yield "up", _number(summary.get("up_bytes_per_token"), 2), "bytes per trained token"
    yield "down", _number(summary.get("down_bytes_per_token"), 2), "bytes per trained token"


def figures_table(figures: Mapping[str, Any]) -> RenderableType:
    """What a bench prints for people: each figure, with its interval where it has one."""
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
    """What a bench prints of several cases, one to a column."""
    table = Table.grid(padding=(0, GAP, 0, 0))
    for name in rows[0]:
        shown = [f"{v:.4g}" if isinstance(v := row[name], float) else str(v) for row in rows]
        table.add_row(name, *(Text(text, "bold", justify="right") for text in shown))
    return table


# --- figures in words -----------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """`0:07`, `12:40`, `1:02:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def amount(number: float) -> str:
    """Three digits that count, and a unit: `950`, `12.4k`, `1.23M`."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit * NEARLY:
            return f"{number / unit:#.3g}".rstrip(".") + name
    return f"{number:.0f}"


def sparkline(history: Sequence[float], width: int = SPARKLINE) -> str:
    """The course of a figure, lowest to highest; the mean of neighbours where there are many."""
    if len(history) < 2 or not all(map(math.isfinite, history)):
        return ""
    columns = min(width, len(history))
    edges = [index * len(history) // columns for index in range(columns + 1)]
    means = [fmean(history[low:high]) for low, high in pairwise(edges)]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(SPARKS[round((each - low) / span * (len(SPARKS) - 1))] for each in means)


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _number(number: float | None, digits: int) -> str:
    if number is None:
        return "-"
    return f"{number:,.{digits}f}" if math.isfinite(number) else NOT_FINITE


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"
