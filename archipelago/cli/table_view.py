"""The choice of what a live table shows: which islands, in which order, and which figures; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.status import IslandStatus
from islands.time_budget import Activity, shares

FIXED_LINES = 15
"""Lines of the table that are no islands: header, figures, fragments, help."""
LEAST_ROWS = 3
"""Rows of islands that are shown on the smallest screen."""
URGENT = ("set aside", "lost", "quarantined", "waiting", "starting", "joining", "draining", "left")
"""States from the most to the least urgent; all other islands follow."""
HELP = "s sort  ↑ ↓ page  t time  f fragments  q quit"


def _number(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _urgency(island: IslandStatus) -> int:
    if island["state"] in URGENT:
        return URGENT.index(island["state"])
    return len(URGENT) - ("slow," in island["why"])


ORDERS: dict[str, Callable[[IslandStatus], Any]] = {
    "name": lambda island: (island["group"], _number(island["island"]), island["island"]),
    "trouble": _urgency,
    "speed": lambda island: island["tokens_per_s"],
    "loss": lambda island: -(island["loss"] if island["loss"] is not None else float("-inf")),
    "computing": lambda island: shares(island.get("recent_s", {})).get(Activity.COMPUTING, 0.0),
}
"""The orders of the islands, and the key of each: the slowest, the highest loss come first."""


@dataclass(frozen=True, slots=True)
class TableView:
    """The choice of what a live table shows."""

    order: str = "name"
    """The order of the islands, of `ORDERS`."""
    first: int = 0
    """The number of the first island that is shown, from 0."""
    rows: int | None = None
    """The most islands that are shown; None: all."""
    time: bool = False
    """Whether the table shows the time of the islands in place of their figures."""
    fragments: bool = False
    """Whether each fragment has a line of its own, whatever their number."""
    interactive: bool = False
    """Whether keys are read, so that the table names them."""

    def fitting(self, height: int) -> TableView:
        """Return the view for a screen of this many lines."""
        return replace(self, rows=max(LEAST_ROWS, height - FIXED_LINES))

    def visible(self, islands: Sequence[IslandStatus]) -> list[IslandStatus]:
        """Return the islands that are shown, in order; with fewer rows, troubles come first."""
        order = self.order
        if not self.interactive and self.rows is not None and len(islands) > self.rows:
            order = "trouble"
        ordered = sorted(islands, key=ORDERS["name"])
        ordered = sorted(ordered, key=ORDERS[order])
        if self.rows is None:
            return ordered
        first = self._first(len(ordered))
        return ordered[first : first + self.rows]

    def _first(self, count: int) -> int:
        return max(0, min(self.first, count - (self.rows or count)))

    def note(self, islands: Sequence[IslandStatus]) -> str:
        """Return the line under the islands: which ones are shown, and the keys."""
        count, rows = len(islands), self.rows
        if rows is None or count <= rows:
            part = ""
        elif self.interactive:
            first = self._first(count)
            part = f"islands {first + 1} to {first + rows} of {count}"
        else:
            hidden = [each for each in islands if each not in self.visible(islands)]
            states = ", ".join(sorted({each["state"] for each in hidden}))
            part = f"and {len(hidden)} more islands ({states})"
        if not self.interactive:
            return part
        return "  ".join(filter(None, [part, f"by {self.order}", HELP]))

    def pressed(self, key: str, count: int) -> TableView | None:
        """Return the view after a key, None if the key ends the display; `count`: of islands."""
        rows = self.rows or count
        last = max(0, count - rows)
        match key:
            case "q":
                return None
            case "s":
                orders = [*ORDERS]
                after = orders[(orders.index(self.order) + 1) % len(orders)]
                return replace(self, order=after, first=0)
            case "t":
                return replace(self, time=not self.time)
            case "f":
                return replace(self, fragments=not self.fragments)
            case "up" | "k":
                return replace(self, first=max(0, self._first(count) - 1))
            case "down" | "j":
                return replace(self, first=min(last, self._first(count) + 1))
            case "page up" | "b":
                return replace(self, first=max(0, self._first(count) - rows))
            case "page down" | " ":
                return replace(self, first=min(last, self._first(count) + rows))
            case "home" | "g":
                return replace(self, first=0)
            case "end" | "G":
                return replace(self, first=last)
            case _:
                return self
