"""What a person sees of a run while it goes on: a live table, and lines for what happens.

`render`, `line` and `announce` are pure; `Display` puts them on a console.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from archipelago.cli.formatting import GAP, WIDTH, amount, duration, number, sparkline
from cluster.status import FragmentStatus, IslandStatus, PhaseName, RunStatus

BAR = 30  # columns of the bar of t
NAMES = 3  # islands named in one announcement before they are only counted
LINE_EVERY_S = 5.0  # between two plain lines, where there is no terminal
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


def render(status: RunStatus) -> RenderableType:
    """The live table: the run, its islands, its fragments; at most `WIDTH` columns."""
    return Group(
        _header(status),
        _figures(status),
        Text(),
        _islands(status["islands"]),
        Text(),
        _fragments(status),
        *(Text(f"ALERT: {alert}", "bold red") for alert in status.get("alerts", ())),
    )


def line(status: RunStatus) -> str:
    """The same in one line of ASCII, for a log."""
    heldout = status["heldout"]
    parts = [
        duration(status["elapsed_s"]),
        status["phase"],
        f"t {status['t']}/{status['steps']}",
        f"held-out {number(heldout[-1][1], 3) if heldout else '-'}",
        f"merges {status['merges']}",
        f"participants {status['participants']:.1f}, {status['alive']} alive",
        f"tokens {amount(status['tokens_trained'])}, {amount(status['tokens_per_s'])}/s",
        "left -" if status["left_s"] is None else f"left {duration(status['left_s'])}",
    ]
    if judging := _judging(status):
        parts.append(judging)
    if away := [f"{i['island']} {i['state']}" for i in status["islands"] if i["state"] != "live"]:
        parts.append(", ".join(away))
    parts.extend(f"ALERT {alert}" for alert in status.get("alerts", ()))
    return "  ".join(parts)


def announce(before: RunStatus | None, after: RunStatus) -> list[str]:
    """What happened between two looks at a run, a line each, stamped with the run's own time."""
    stamp = duration(after["elapsed_s"])
    happened = [*_of_the_run(before, after), *_of_the_islands(before, after)]
    return [f"{stamp}  {text}" for text in happened]


def _of_the_run(before: RunStatus | None, after: RunStatus) -> Iterator[str]:
    phases: dict[PhaseName, str] = {
        "starting": f"{after['run']} is starting {after['wanted']} islands",
        "running": f"{after['run']} is running",
        "stopping": "stopping: each fragment has its last round",
        "finished": _end(after),
    }
    if before is None or before["phase"] != after["phase"]:
        yield phases[after["phase"]]
    known = before is not None and before.get("evaluation") is not None
    if (told := after.get("evaluation")) is not None and not known:
        look, last = duration(told["look_s"]), duration(told["last_s"])
        yield f"judging the model takes {look} at each look and {last} at the end"
    yield from _of_the_alerts(before, after)
    was, now = _not_durable(before), _not_durable(after)
    if was != now:
        yield f"not durable: {now}" if now else "durable again"
    if (damage := _damage(after)) and damage != _damage(before):
        yield f"damaged when the run came back: {damage}"


def _end(status: RunStatus) -> str:
    """How the run ended: by itself, or because somebody asked for it."""
    where = f"at t {status['t']} after {status['merges']} merges"
    if (asked := status.get("asked")) is None:
        return f"finished {where}"
    return f"stopped {where}, before t {status['steps']}: {asked}"


def _of_the_alerts(before: RunStatus | None, after: RunStatus) -> Iterator[str]:
    """What somebody must see to, once each; and that it is over."""
    was, now = (before or {}).get("alerts", []), after.get("alerts", [])
    for alert in now:
        if alert not in was:
            yield f"ALERT: {alert}"
    if was and not now:
        yield "what the alerts were about is over"


def _not_durable(status: RunStatus | None) -> str:
    return status["figures"]["not_durable"] if status and status["figures"] else ""


def _damage(status: RunStatus | None) -> str:
    return status["figures"].get("damage", "") if status and status["figures"] else ""


def _of_the_islands(before: RunStatus | None, after: RunStatus) -> Iterator[str]:
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
        *_fact("participants", f"{status['participants']:.1f}" if status["merges"] else "-"),
        *_fact("alive", f"{alive} of {total}", "" if alive == total else "red"),
        *_fact("tokens", amount(status["tokens_trained"])),
        *_fact("per s", amount(status["tokens_per_s"])),
        *_fact("faults", str(status["faults"]), "red" if status["faults"] else ""),
    )
    lines: list[RenderableType] = [facts, loss]
    if judging := _judging(status):
        lines.append(Text(judging, style="cyan"))
    if why := _not_durable(status):
        lines.append(Text(f"not durable: {why}", style="bold red"))
    if damage := _damage(status):
        lines.append(Text(f"damaged when the run came back: {damage}", style="yellow"))
    return Group(*lines)


def _judging(status: RunStatus) -> str:
    """How far the last model is judged; empty before that."""
    told = status.get("evaluation")
    if told is None or told["wanted"] == 0:
        return ""
    left_s = told["last_s"] * (1 - told["done"] / told["wanted"])
    of = f"{told['done']} of {told['wanted']} batches"
    return f"judging the last model: {of}, left {duration(left_s)}"


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


def _fragments(status: RunStatus) -> RenderableType:
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
        self._last: RunStatus | None = None
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

    def show(self, status: RunStatus) -> None:
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
