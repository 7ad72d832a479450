"""The events of a run: decisions and faults that change it, each with its reason.

`events_between` compares two statuses and is pure. A change that begins and ends between two looks
(`monitor.refresh_s`) shows as its result: an island that was lost and is back joins as a new life.
The file `events.jsonl`, the live page and the lines of a terminal show these events and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cluster.fleet.event_kinds import EventKind, RunEvent
from cluster.fleet.trouble_events import alert_events, link_events, loss_events
from cluster.status import IslandStatus, RunStatus
from coordinator.membership import STEPS

HAS_LEFT = "has left"
"""The text of an island that was drained to the end; one that was ended before is only gone."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected on purpose."""

    kind: str
    """The kind of fault, such as kill."""
    target: str
    """The island or service that it hit."""
    why: str
    """The reason: the plan, or a request."""
    for_s: float | None = None
    """Seconds for which it lasts; None: it has no end."""


def fault_events(faults: Iterable[InjectedFault], groups: Mapping[str, str]) -> Iterator[RunEvent]:
    """Yield an event for each injected fault; `groups`: the group of each island."""
    for fault in faults:
        text = f"{fault.target}: {fault.kind} on purpose: {fault.why}"
        group = groups.get(fault.target)
        yield RunEvent("fault", fault.why, text, fault.target, group, for_s=fault.for_s)


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
            yield _of(island, "leave", why, f"{name} is gone from the run{_because(why)}")
    yield from _of_the_failures(before, after)
    yield from alert_events(before, after)
    yield from link_events(before, after)
    yield from loss_events(before, after)


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
            moment = f"at t {after['t']} after {after['merges']} merges"
            text = f"{after['run']} has finished {moment}"
            if why:
                text = f"{after['run']} was stopped {moment}, before t {after['steps']}: {why}"
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
            because = "" if why.startswith(STEPS) else _because(why)
            yield _of(now, "join", why, f"{name} {text}{because}")
        case "lost":
            yield _of(now, "loss", why, f"{name} is lost{_because(why)}")
        case "quarantined":
            yield _of(now, "quarantine", why, f"{name} is quarantined{_because(why)}")
        case "set aside":
            yield _of(now, "set aside", why, f"{name} is set aside{_because(why)}")
        case "draining":
            yield _of(now, "drain", why, f"{name} is draining{_because(why)}")
        case "left":
            yield _of(now, "leave", why, f"{name} {HAS_LEFT}{_because(why)}")
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
