"""The faults of a run for the stages of a roll-out: drains, kills, cuts, and what came after them.

An event has the time of the look at which the fleet saw it. A contribution that was under way may
arrive after a fault, so none counts before the island is back or its cut is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from archipelago.lab.checks.rollout import Harmed
from archipelago.lab.report.run_record import RunRecord
from cluster.config.fault_kinds import FaultKind
from cluster.config.schema import Config
from cluster.fleet.run_events import HAS_LEFT
from cluster.fleet.trouble_events import DOWN

KILLS = (FaultKind.KILL, FaultKind.NODE)
SILENCING = (*KILLS, FaultKind.STOP)
"""The faults of an island after which nothing comes from it, although its link is whole."""
DIED = "its process ended"
"""The reason with which a loss by the death of a process is reported."""
SILENT = "silent for"
"""The reason of a loss by silence, which a link that is cut off causes, too."""


def contributions(rows: Sequence[Mapping[str, Any]], since_s: float = -1.0) -> dict[str, int]:
    """Return the contributions of each island from a time on."""
    first, last = dict[str, int](), dict[str, int]()
    for row in rows:
        for name, island in islands_in(row).items():
            if row["elapsed_s"] <= since_s:
                first[name] = island["contributions"]
            last[name] = max(last.get(name, 0), island["contributions"])
    return {name: count - first.get(name, 0) for name, count in last.items()}


def islands_in(row: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the islands of a row by name."""
    return {each["island"]: each for each in row.get("islands", ())}


def links_of(record: RunRecord, config: Config) -> dict[str, str]:
    """Return the region of each island, which is also its link; its group if it has no region."""
    of_group = {group.group: str(group.region or group.group) for group in config.islands}
    return {
        name: str(of_group.get(island["group"], island["group"]))
        for row in record.rows
        for name, island in islands_in(row).items()
    }


def drained(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the islands that were drained to the end: they handed in their work and left."""
    draining: set[str] = set()
    for event in events:
        island = event.get("island")
        match event.get("kind"):
            case "drain" if island:
                draining.add(island)
            case "leave" if island in draining and _has_left(event):
                draining.discard(island)
                yield island
            case "leave" | "loss":
                draining.discard(str(island))
            case _:
                pass


def kills(record: RunRecord) -> Iterator[Harmed]:
    """Yield the islands whose process died: on purpose, or by itself; services do not count."""
    last_s: dict[str, float] = {}
    known = contributions(record.rows)
    for event in record.events:
        by_itself = event.get("kind") == "loss" and DIED in str(event.get("why", ""))
        if event.get("island") in known and (by_itself or _on_purpose(event, KILLS)):
            last_s[str(event["island"])] = event["elapsed_s"]
    for island, at_s in last_s.items():
        back_s = _next_join_s(record.events, island, at_s)
        yield Harmed(island, contributions(record.rows, back_s)[island] > 0)


def cuts(record: RunRecord, config: Config) -> Iterator[Harmed]:
    """Yield the islands and links that were cut off."""
    links = links_of(record, config)
    over_s: dict[str, float] = {}
    silent = dict[str, float]()  # islands with a fault of their own, and when it was over
    for event in record.events:
        island, kind, at_s = event.get("island"), event.get("kind"), event.get("elapsed_s", 0.0)
        if island and _on_purpose(event, (FaultKind.CUT,)):
            for_s = event.get("for_s")  # earlier versions did not write it
            end_s = _next_join_s(record.events, island, at_s) if for_s is None else at_s + for_s
            over_s[island] = max(over_s.get(island, 0.0), end_s)
        elif island and _silences(event):
            silent[island] = at_s + (event.get("for_s") or math.inf)
        elif kind == "join" and island in silent:
            silent[island] = at_s
        elif kind == "link" and event.get("why") == DOWN:
            mine = [name for name in silent if links.get(name) == event.get("link")]
            if all(_contributed(record.rows, name, silent[name], at_s) for name in mine):
                over_s[f"link {event.get('link')}"] = at_s
    for target, since_s in over_s.items():
        since = contributions(record.rows, since_s)
        mine = [name for name in since if target in (name, f"link {links[name]}")]
        yield Harmed(target, any(since[name] > 0 for name in mine))


def _on_purpose(event: Mapping[str, Any], kinds: Sequence[FaultKind]) -> bool:
    """Return whether an event is an injected fault of one of these kinds."""
    text = str(event.get("text", ""))
    return event.get("kind") == "fault" and any(f": {kind} on purpose" in text for kind in kinds)


def _has_left(event: Mapping[str, Any]) -> bool:
    return f"{event.get('island')} {HAS_LEFT}" in str(event.get("text", ""))


def _silences(event: Mapping[str, Any]) -> bool:
    """Return whether nothing comes from an island after an event, although its link is whole."""
    kind = event.get("kind")
    if kind == "loss":
        return not str(event.get("why", "")).startswith(SILENT)
    return (kind == "leave" and not _has_left(event)) or _on_purpose(event, SILENCING)


def _next_join_s(events: Sequence[Mapping[str, Any]], island: str, since_s: float) -> float:
    """Return when an island joined next; infinite if it never did."""
    return next(
        (
            event["elapsed_s"]
            for event in events
            if event.get("kind") == "join"
            and event.get("island") == island
            and event["elapsed_s"] > since_s
        ),
        math.inf,
    )


def _contributed(
    rows: Sequence[Mapping[str, Any]], island: str, since_s: float, until_s: float
) -> bool:
    """Return whether an island contributed between two times."""
    between = [row for row in rows if row["elapsed_s"] <= until_s]
    return contributions(between, since_s).get(island, 0) > 0
