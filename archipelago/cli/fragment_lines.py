"""The fragments of a run as lines of the live table: one each, or folded if there are many."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from archipelago.cli.formatting import GAP
from cluster.status import FragmentStatus

ROWS_IN_FULL = 8
"""The most fragments that get a line each; more of them share lines."""
OPEN_ROUNDS = 3
"""The most open rounds that a folded table lists."""
ALL, SOME, NEVER = "●", "◐", "·"
"""The marks of a fragment whose last merge had all islands, had some, or has not been yet."""


def fragment_lines(
    fragments: Sequence[FragmentStatus], names: Sequence[str], width: int, *, whole: bool = False
) -> RenderableType:
    """Return the fragments; `names`: the islands in order, `whole`: never fold."""
    if len(fragments) <= ROWS_IN_FULL or whole:
        return _in_full(fragments, names, width)
    return _folded(fragments, names, width)


def _in_full(
    fragments: Sequence[FragmentStatus], names: Sequence[str], width: int
) -> RenderableType:
    dots = len(names) <= width // 2
    merged_width = (len(names) if dots else 0) + len(" 99 of 99")
    table = Table(
        Column("fragment", justify="right"),
        Column("version", justify="right"),
        Column("last merge", no_wrap=True, min_width=merged_width),
        Column("open round", ratio=1, no_wrap=True, overflow="ellipsis"),
        box=None, width=width, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim",
    )  # fmt: skip
    for fragment in fragments:
        table.add_row(
            str(fragment["fragment"]),
            f"v{fragment['version']}",
            _participants(fragment, names, dots=dots),
            _round(fragment),
        )
    return table


def _folded(
    fragments: Sequence[FragmentStatus], names: Sequence[str], width: int
) -> RenderableType:
    """Return a summary, a mark for each fragment, and some of the open rounds."""
    versions = [fragment["version"] for fragment in fragments]
    open_ = [fragment for fragment in fragments if fragment["round"] is not None]
    mean = sum(len(fragment["participants"]) for fragment in fragments) / len(fragments)
    title = (
        f"{len(fragments)} fragments, v{min(versions)} to v{max(versions)}, last merges with "
        f"{mean:.1f} of {len(names)} islands, {len(open_)} rounds open"
    )
    label = len(str(len(fragments) - 1)) + 2
    per_line = max(8, (width - label) // 8 * 8)
    lines = [Text(title, style="dim")]
    for start in range(0, len(fragments), per_line):
        marks = [_mark(each, len(names)) for each in fragments[start : start + per_line]]
        lines.append(Text.assemble((f"{'p' + str(start):<{label}}", "dim"), *marks))
    for fragment in open_[:OPEN_ROUNDS]:
        name = (f"{'p' + str(fragment['fragment']):<{label}}", "dim")
        line = Text.assemble(name, f"v{fragment['version']}  ", _round(fragment))
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    if (more := len(open_) - OPEN_ROUNDS) > 0:
        lines.append(Text(f"{'':<{label}}and {more} more open rounds", style="dim"))
    return Group(*lines)


def _mark(fragment: FragmentStatus, total: int) -> tuple[str, str]:
    count = len(fragment["participants"])
    mark = NEVER if not fragment["version"] else ALL if count >= total else SOME
    style = "dim" if mark == NEVER else "green"
    return mark, "yellow" if fragment["round"] is not None else style


def _participants(fragment: FragmentStatus, names: Sequence[str], *, dots: bool) -> Text:
    if not fragment["version"]:
        return Text("-", style="dim")
    count = f"{len(fragment['participants'])} of {len(names)}"
    return Text.assemble(_dots(fragment, names), f" {count}") if dots else Text(count)


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
