"""The events of a run: decisions and faults that change it, each with its reason.

`events_between` compares two statuses and is pure. A change that begins and ends between two looks
(`monitor.refresh_s`) shows as its result: an island that was lost and is back joins as a new life.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cluster.fleet.run_identity import SCHEMA
from cluster.status import IslandStatus, LinkStatus, RunStatus
from cluster.storage.files import json_text

EventKind = Literal[
    "phase", "join", "loss", "quarantine", "set aside", "drain", "leave", "scale", "fault",
    "failure", "alert", "alert over", "durability", "link",
]  # fmt: skip
"""The kinds of events.

`phase`: the run starts, runs, stops or has finished. `join`: a learner is live, or back as a new
life. `loss`: a life has ended. `set aside`: an island failed too often and is given up. `drain`: an
island hands in its work. `leave`: it is gone. `scale`: another number of islands is wanted.
`fault`: a fault was injected on purpose. `failure`: an exception, a useless message or a full
object store. `durability`: writes are refused, or work again. `link`: a link is slow, down or back.
"""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a run: one line of `events.jsonl`."""

    kind: EventKind
    """The kind of event."""
    why: str
    """The reason; empty if it is not known."""
    text: str
    """The event in one line, for people, with its reason."""
    island: str | None = None
    """The island that the event is about; None: the run."""
    group: str | None = None
    """The group of the island, or the group that is scaled; None: the run."""

    def line(self, status: RunStatus, unix_s: float) -> str:
        """Return the event as a line of events.jsonl."""
        plain: dict[str, Any] = {
            "schema": SCHEMA,
            "unix_s": unix_s,
            "elapsed_s": status["elapsed_s"],
            "run": status["run"],
            "t": status["t"],
            "kind": self.kind,
            "island": self.island,
            "group": self.group,
            "why": self.why,
            "text": self.text,
        }
        return json_text(plain)


EVENT_FIELDS = {
    "schema": "Version of these keys.",
    "unix_s": "Time at which the fleet saw the event, in seconds since 1970.",
    "elapsed_s": "The same time, in seconds since the start of the run.",
    "run": "Name of the run.",
    "t": "The syncer's clock.",
    "kind": "Kind of event: phase, join, loss, quarantine, set aside, drain, leave, scale, fault, "
    "failure, alert, alert over, durability or link.",
    "island": "The island that the event is about; null: the whole run.",
    "group": "The group of the island, or the group that is scaled; null: the whole run.",
    "why": "The reason; empty if it is not known.",
    "text": "The event in one line, for people, with its reason.",
}
"""The keys of a line of `events.jsonl`, and their meaning."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected on purpose."""

    kind: str
    """The kind of fault, such as kill."""
    target: str
    """The island or service that it hit."""
    why: str
    """The reason: the plan, or a request."""


def fault_events(faults: Iterable[InjectedFault], groups: Mapping[str, str]) -> Iterator[RunEvent]:
    """Yield an event for each injected fault; `groups`: the group of each island."""
    for fault in faults:
        text = f"{fault.target}: {fault.kind} on purpose: {fault.why}"
        group = groups.get(fault.target)
        yield RunEvent("fault", fault.why, text, fault.target, group)


def scale_events(before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[RunEvent]:
    """Yield an event for each group of which another number of islands is wanted."""
    for group in sorted(before.keys() | after.keys()):
        old, new = before.get(group, 0), after.get(group, 0)
        if old != new:
            text = f"group {group}: {new} islands are wanted, not {old}: requested"
            yield RunEvent("scale", "requested", text, None, group)


def events_between(before: RunStatus | None, after: RunStatus) -> Iterator[RunEvent]:
    """Yield the events between two statuses; None: the run has just begun."""
    yield from _of_the_phase(before, after)
    known = {each["island"]: each for each in before["islands"]} if before else {}
    now = {each["island"]: each for each in after["islands"]}
    for name, island in now.items():
        yield from _of_the_island(known.get(name), island)
    for name, island in known.items():
        if name not in now and island["state"] != "left":
            why = island["why"]
            yield _of(island, "leave", why, f"{name} is gone{_because(why)}")
    yield from _of_the_failures(before, after)
    yield from _of_the_alerts(before, after)
    yield from _of_the_links(before, after)


def _of_the_phase(before: RunStatus | None, after: RunStatus) -> Iterator[RunEvent]:
    if before is not None and before["phase"] == after["phase"]:
        return
    why = after.get("asked") or ""
    match after["phase"]:
        case "starting":
            text = f"{after['run']} is starting {after['wanted']} islands"
        case "running":
            text = f"{after['run']} is running"
        case "stopping":
            why = why or f"t {after['steps']} is reached"
            text = f"{after['run']} is stopping: {why}"
        case "finished":
            text = f"{after['run']} has finished at t {after['t']}{_because(why)}"
    yield RunEvent("phase", why, text)


def _of_the_island(was: IslandStatus | None, now: IslandStatus) -> Iterator[RunEvent]:
    if was and was["state"] == now["state"] and was["life"] == now["life"]:
        return
    name, why = now["island"], now["why"]
    ended = was["life"] if was and was["state"] == "live" and now["life"] > was["life"] else None
    if ended is not None and now["state"] in ("live", "joining", "starting"):
        yield _of(now, "loss", why, f"{name} was lost: its life {ended} has ended")
    match now["state"]:
        case "live":
            text = "is live" if now["life"] <= 1 else f"is back as life {now['life']}"
            yield _of(now, "join", why, f"{name} {text}{_because(why)}")
        case "lost":
            yield _of(now, "loss", why, f"{name} is lost{_because(why)}")
        case "quarantined":
            yield _of(now, "quarantine", why, f"{name} is quarantined{_because(why)}")
        case "set aside":
            yield _of(now, "set aside", why, f"{name} is set aside{_because(why)}")
        case "draining":
            yield _of(now, "drain", why, f"{name} is draining{_because(why)}")
        case "left":
            yield _of(now, "leave", why, f"{name} has left{_because(why)}")
        case "waiting" | "starting" | "joining":
            if was and was["state"] == "live" and ended is None:
                yield _of(now, "loss", why, f"{name} is {now['state']} again{_because(why)}")


def _of(island: IslandStatus, kind: EventKind, why: str, text: str) -> RunEvent:
    return RunEvent(kind, why, text, island["island"], island["group"])


def _because(why: str) -> str:
    return f": {why}" if why else ""


def _of_the_failures(before: RunStatus | None, after: RunStatus) -> Iterator[RunEvent]:
    old = before["failures"] if before else {}
    for reason, count in after["failures"].items():
        if (more := count - old.get(reason, 0)) > 0:
            yield RunEvent("failure", reason, f"{more} more failures of islands: {reason}")


def _of_the_alerts(before: RunStatus | None, after: RunStatus) -> Iterator[RunEvent]:
    """Yield what has begun to need a person, and what is over; other numbers are no change."""
    old, new = _troubles(before), _troubles(after)
    for (kind, key), why in new.items():
        if (kind, key) not in old:
            text = f"not durable: {why}" if kind == "durability" else f"ALERT: {why}"
            yield RunEvent(kind, why, text)
    for (kind, key), why in old.items():
        if (kind, key) not in new:
            over: EventKind = "durability" if kind == "durability" else "alert over"
            yield RunEvent(over, why, f"over: {why}")


def _troubles(status: RunStatus | None) -> dict[tuple[EventKind, str], str]:
    """Return what needs a person now, by kind and text without numbers: alerts, refused writes."""
    found: list[tuple[EventKind, str]] = []
    if status is not None:
        alerts = [*status.get("alerts", ())]
        if (figures := status["figures"]) is not None:
            alerts += [figures["trouble"], figures.get("damage", "")]
            found.append(("durability", figures["not_durable"]))
        found.extend(("alert", each) for each in alerts)
    return {(kind, re.sub(r"\d+", "#", why)): why for kind, why in found if why}


def _of_the_links(before: RunStatus | None, after: RunStatus) -> Iterator[RunEvent]:
    known = {_key(each): each for each in (before or {}).get("links", ())}
    for link in after.get("links", ()):
        was = known.get(_key(link))
        old, new = "well" if was is None else _state(was), _state(link)
        if old != new:
            yield RunEvent("link", new, f"link {link['link']} {link['direction']} is {new}")


def _key(link: LinkStatus) -> tuple[str, str]:
    return link["link"], link["direction"]


def _state(link: LinkStatus) -> str:
    return "down" if link["down"] else "slow" if link["slow"] else "well"
