"""The status of a run in a terminal or a notebook: one line, or one small table."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from html import escape
from types import TracebackType
from typing import Any, cast

from cluster.status import RunStatus
from coordinator.errors import UserMistake

_MOST_ISLANDS = 24
"""The most islands that a table lists."""
_CELL = 'style="text-align:left"'


class StatusTable(dict[str, Any]):
    """A status that a notebook shows as a table; in all else it is a plain dictionary."""

    @classmethod
    def of(cls, status: RunStatus) -> RunStatus:
        """Return the same status as one that has a table."""
        return cast(RunStatus, cls(status))

    def _repr_html_(self) -> str:
        """Return the table, for IPython."""
        return table_of(cast(RunStatus, self))


class ProgressDisplay:
    """The updated line or table of `wait(progress=True)`, as a context manager."""

    def __init__(self, *, enabled: bool) -> None:
        """Show nothing if `enabled` is false, or if there is neither a terminal nor a notebook."""
        notebook = _notebook() if enabled else None
        self._display = notebook
        self._terminal = enabled and notebook is None and sys.stdout.isatty()
        self._handle: Any = None
        self._width = 0

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self._width:
            print(flush=True)

    def show(self, status: Callable[[], RunStatus]) -> None:
        """Show the present status; if it cannot be read now, leave the display as it is."""
        if self._display is None and not self._terminal:
            return
        try:
            seen = StatusTable.of(status())
        except UserMistake:  # the result of the run has the reason
            return
        if self._display is None:
            line = line_of(seen)
            print(f"\r{line:<{self._width}}", end="", flush=True)
            self._width = len(line)
        elif self._handle is None:
            self._handle = self._display(seen, display_id=True)
        else:
            self._handle.update(seen)


def line_of(status: RunStatus) -> str:
    """Return the status in one line."""
    return f"{status['run']}: " + ", ".join(f"{name} {value}" for name, value in _facts(status))


def table_of(status: RunStatus) -> str:
    """Return the status as an HTML table: the run in the first row, then a row for each island."""
    facts = " &middot; ".join(f"{name} <b>{escape(value)}</b>" for name, value in _facts(status))
    rows = [
        f"<tr><td {_CELL}>{escape(each['island'])}</td><td {_CELL}>{escape(each['state'])}</td>"
        f"<td>{each['steps']}</td><td>{each['tokens_per_s']:.0f}</td>"
        f"<td>{_number(each['loss'])}</td><td {_CELL}>{escape(each['why'])}</td></tr>"
        for each in status["islands"][:_MOST_ISLANDS]
    ]
    if (more := len(status["islands"]) - _MOST_ISLANDS) > 0:
        rows.append(f'<tr><td colspan="6" {_CELL}>and {more} more</td></tr>')
    titles = "".join(
        f"<th>{each}</th>" for each in ("island", "state", "steps", "tokens/s", "loss", "reason")
    )
    return (
        f"<div><b>{escape(status['run'])}</b>: {facts}</div>"
        f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _facts(status: RunStatus) -> list[tuple[str, str]]:
    curve, left_s = status["heldout"], status["left_s"]
    return [
        ("phase", status["phase"]),
        ("step", f"{status['t']}/{status['steps']}"),
        ("held-out loss", _number(curve[-1][1] if curve else None)),
        ("merges", str(status["merges"])),
        ("islands", str(status["alive"])),
        ("tokens/s", f"{status['tokens_per_s']:.0f}"),
        ("left", "-" if left_s is None else f"{left_s:.0f} s"),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def _notebook() -> Any:
    """Return IPython's function `display` if this is a notebook; None if it is not."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    return display
