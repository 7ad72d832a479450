"""The events about troubles of a run: alerts, durability, damage, the loss, links; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from cluster.fleet.event_kinds import EventKind, RunEvent
from cluster.status import LinkStatus, RunStatus

AS_USUAL, DOWN = "as usual again", "down: nothing comes"
"""The states of a link without trouble, and of one that is cut off."""
SLOW, LAGGING = "slow: under half of its usual rate", "late: most transfers exceed the overlap"
"""The states of a link that carries less than usual, and of one that carries too little in time."""
NOT_DURABLE, LEFT_ITS_BAND = "not durable", "the loss left its band"
"""The texts with which a trouble begins whose event at its end has the same kind."""


def alert_events(before: RunStatus | None, after: RunStatus) -> Iterator[RunEvent]:
    """Yield what has begun to need a person, and what is over; other numbers are no change."""
    old, new = _troubles(before), _troubles(after)
    for key, begun in new.items():
        if key not in old:
            yield begun
    for key, begun in old.items():
        if key not in new:
            if begun.kind == "durability":
                yield RunEvent("durability", begun.why, f"durable again, after: {begun.why}")
            else:
                yield RunEvent("alert over", begun.why, f"over: {begun.why}")


def open_troubles(events: Iterable[Mapping[str, object]]) -> dict[tuple[EventKind, str], str]:
    """Return the troubles that are not over after these events, oldest first, each with its text.

    The kinds are alerts, refused writes and a loss outside its band. The key of an alert is that of
    `_troubles`: its numbers may change meanwhile.
    """
    found: dict[tuple[EventKind, str], str] = {}
    for event in events:
        kind, why, text = (str(event.get(key, "")) for key in ("kind", "why", "text"))
        match kind:
            case "alert":
                found["alert", _numberless(why)] = why
            case "alert over":
                found.pop(("alert", _numberless(why)), None)
            case "durability" if text.startswith(NOT_DURABLE):
                found["durability", _numberless(why)] = text
            case "durability":
                found.pop(("durability", _numberless(why)), None)
            case "band" if text.startswith(LEFT_ITS_BAND):
                found["band", ""] = text
            case "band":
                found.pop(("band", ""), None)
            case _:
                pass
    return found


def with_open_alerts(status: RunStatus, events: Iterable[Mapping[str, object]]) -> RunStatus:
    """Return a status that also has the alerts which began after it and are not over."""
    known = _troubles(status)
    more = [
        why
        for (kind, key), why in open_troubles(events).items()
        if kind == "alert" and (kind, key) not in known
    ]
    return {**status, "alerts": [*status.get("alerts", ()), *more]} if more else status


def _numberless(why: str) -> str:
    return re.sub(r"\d+", "#", why)


def _troubles(status: RunStatus | None) -> dict[tuple[EventKind, str], RunEvent]:
    """Return what needs a person now, by kind and text without numbers: alerts, refused writes."""
    found: list[RunEvent] = []
    if status is not None:
        alerts = [*status.get("alerts", ())]
        if (figures := status["figures"]) is not None:
            why = figures.get("not_durable", "")
            found.append(RunEvent("durability", why, f"{NOT_DURABLE}: {why}"))
            why = figures.get("damage", "")
            found.append(RunEvent("alert", why, f"damaged when the run came back: {why}"))
            alerts.append(figures.get("trouble", ""))
        found.extend(RunEvent("alert", why, f"ALERT: {why}") for why in alerts)
    return {(each.kind, _numberless(each.why)): each for each in found if each.why}


def loss_events(before: RunStatus | None, after: RunStatus) -> Iterator[RunEvent]:
    """Yield an event if the loss leaves its band or returns, and one for spikes of an island.

    A loss outside that is no longer compared has an event, too: the run went back to a state for
    which no loss is expected, or the expectation is gone.
    """
    was, now = (before or {}).get("expected"), after.get("expected")
    was_inside = was is None or was["inside"]
    if now is not None and now["inside"] is not was_inside:
        loss = "not finite" if now["heldout_loss"] is None else f"{now['heldout_loss']:.4f}"
        why = (
            f"held-out loss {loss} after {now['tokens']:,} tokens, expected {now['loss']:.4f} "
            f"({now['low']:.4f} to {now['high']:.4f})"
        )
        text = "the loss is inside its band again" if now["inside"] else LEFT_ITS_BAND
        yield RunEvent("band", why, f"{text}: {why}")
    if now is None and not was_inside:
        why = f"no expected loss is known after {after['tokens_trained']:,} tokens"
        yield RunEvent("band", why, f"the loss is not compared at present: {why}")
    known = {each["island"]: each.get("loss_spikes", 0) for each in (before or after)["islands"]}
    for island in after["islands"]:
        name, count = island["island"], island.get("loss_spikes", 0)
        if (more := count - known.get(name, 0)) > 0:
            why = "a loss of six deviations above its last 128 steps"
            text = f"{name} has {more} more loss spikes: {why}"
            yield RunEvent("spike", why, text, name, island["group"])


def link_events(before: RunStatus | None, after: RunStatus) -> Iterator[RunEvent]:
    """Yield an event for each link that has become slow, late or down, or is as usual again."""
    known = {_key(each): _state(each) for each in (before or {}).get("links", ())}
    for link in after.get("links", ()):
        if (state := _state(link)) != known.get(_key(link), AS_USUAL):
            text = f"{_named(link)} is {state}"
            yield RunEvent("link", state, text, link=link["link"])


def _key(link: LinkStatus) -> tuple[str, str]:
    return link["link"], link["direction"]


def _state(link: LinkStatus) -> str:
    if link["down"]:
        return DOWN
    if link["slow"]:
        return SLOW
    return LAGGING if link.get("lagging", False) else AS_USUAL


def _named(link: LinkStatus) -> str:
    way = "to the shards" if link["direction"] == "up" else "from the shards"
    return f"the link of {link['link']} {way}"
