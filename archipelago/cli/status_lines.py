"""The status of a run and its events, as lines of text.

All functions are pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from archipelago.cli import link_lines
from archipelago.cli.formatting import amount, duration, number
from cluster.status import IslandStatus, PhaseName, RunStatus

NAMES = 3
"""The most islands that an announcement names; more are only counted."""


def line(status: RunStatus) -> str:
    """Return the status of a run, in one line of ASCII for a log."""
    heldout = status["heldout"]
    parts = [
        duration(status["elapsed_s"]),
        status["phase"],
        f"t {status['t']}/{status['steps']}",
        f"held-out {number(heldout[-1][1], 3) if heldout else '-'}",
        f"merges {status['merges']}",
        f"participants {participants(status)}, {status['alive']} alive",
        f"tokens {amount(status['tokens_trained'])}, {amount(status['tokens_per_s'])}/s",
        "left -" if status["left_s"] is None else f"left {duration(status['left_s'])}",
    ]
    if judging := judging_progress(status):
        parts.append(judging)
    if absent := [f"{i['island']} {i['state']}" for i in status["islands"] if i["state"] != "live"]:
        parts.append(", ".join(absent))
    parts.extend(link_lines.troubles(status))
    parts.extend(f"ALERT {alert}" for alert in status.get("alerts", ()))
    return "  ".join(parts)


def participants(status: RunStatus) -> str:
    """Return the mean participants of recent merges, noting if they exceed the islands alive."""
    mean = status["participants"]
    recent = " in recent merges" if round(mean, 1) > status["alive"] else ""
    return f"{mean:.1f}{recent}"


def announce(before: RunStatus | None, after: RunStatus) -> list[str]:
    """Return one line for each event between two statuses, with the elapsed time of the run."""
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
    if (evaluation := after.get("evaluation")) is not None and not known:
        look_time, last_time = duration(evaluation["look_s"]), duration(evaluation["last_s"])
        yield f"an evaluation takes {look_time}, the final one {last_time}"
    yield from _of_the_alerts(before, after)
    yield from link_lines.changes(before, after)
    old_reason, new_reason = why_not_durable(before), why_not_durable(after)
    if old_reason != new_reason:
        yield f"not durable: {new_reason}" if new_reason else "durable again"
    if (damage := damage_of(after)) and damage != damage_of(before):
        yield f"damaged when the run came back: {damage}"


def _end(status: RunStatus) -> str:
    """Return how the run ended: by itself, or on request."""
    moment = f"at t {status['t']} after {status['merges']} merges"
    if (request := status.get("asked")) is None:
        return f"finished {moment}"
    return f"stopped {moment}, before t {status['steps']}: {request}"


def _of_the_alerts(before: RunStatus | None, after: RunStatus) -> Iterator[str]:
    """Yield a line for each alert that has begun, and one if no alert is left."""
    old_alerts, new_alerts = (before or {}).get("alerts", []), after.get("alerts", [])
    for alert in new_alerts:
        if alert not in old_alerts:
            yield f"ALERT: {alert}"
    if old_alerts and not new_alerts:
        yield "what the alerts were about is over"


def why_not_durable(status: RunStatus | None) -> str:
    """Return why nothing can be made durable now; empty if it can."""
    return status["figures"]["not_durable"] if status and status["figures"] else ""


def damage_of(status: RunStatus | None) -> str:
    """Return the damage that the last restart found in the run's files; empty if none."""
    return status["figures"].get("damage", "") if status and status["figures"] else ""


def _of_the_islands(before: RunStatus | None, after: RunStatus) -> Iterator[str]:
    known = {i["island"]: i for i in before["islands"]} if before else {}
    now = {i["island"]: i for i in after["islands"]}
    islands_by_text: dict[str, list[str]] = defaultdict(list)
    for name, island in now.items():
        for text in _changes(known.get(name), island):
            islands_by_text[text].append(name)
    for name in known:
        if name not in now:
            islands_by_text["gone from the run"].append(name)
    for text, names in islands_by_text.items():
        yield f"{_subject(names)} {text}"


def _subject(names: Sequence[str]) -> str:
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


def judging_progress(status: RunStatus) -> str:
    """Return the progress of evaluating the final model; empty if that has not begun."""
    evaluation = status.get("evaluation")
    if evaluation is None or evaluation["wanted"] == 0:
        return ""
    left_s = evaluation["last_s"] * (1 - evaluation["done"] / evaluation["wanted"])
    progress = f"{evaluation['done']} of {evaluation['wanted']} batches"
    return f"evaluating the final model: {progress}, left {duration(left_s)}"
