"""The display of a live run: the live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from archipelago.cli.live_table import render
from archipelago.cli.status_lines import announce, line
from archipelago.cli.table_view import TableView
from cluster.status import RunStatus

LINE_EVERY_S = 5.0
"""Seconds between two plain lines, without a terminal."""


class Display:
    """A display of successive statuses: a live table on a terminal, else periodic plain lines."""

    def __init__(self, console: Console) -> None:
        self.view = TableView()
        """The choice of what the table shows."""
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
        """Show a status, and the events since the last one."""
        for text in announce(self._last, status):
            self.say(text)
        if self._live:
            self.draw(status)
        elif status["elapsed_s"] >= self._line_due_s:
            self.say(line(status))
            self._line_due_s = status["elapsed_s"] + LINE_EVERY_S
        self._last = status

    def draw(self, status: RunStatus) -> None:
        """Draw the table of a status in its present view, as large as the terminal."""
        if self._live:
            width, height = self._console.size
            drawn = render(status, width=width, view=self.view.fitting(height))
            self._live.update(drawn, refresh=True)

    def say(self, text: str) -> None:
        """Print one line above the table."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
