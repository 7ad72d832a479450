"""The status of a run and its events, as lines of text.

All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from archipelago.cli import link_lines
from archipelago.cli.formatting import amount, by_region, duration, number
from cluster.fleet.contribution_effects import IN_A_ROW
from cluster.fleet.run_events import events_between
from cluster.status import RunStatus

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
    if regions := by_region(status.get("heldout_by_region")):
        parts.insert(4, f"by region {regions}")
    if (expected := status.get("expected")) is not None and not expected["inside"]:
        band = f"{number(expected['low'], 3)} to {number(expected['high'], 3)}"
        parts.append(f"LOSS OUTSIDE its band {band}")
    if judging := judging_progress(status):
        parts.append(judging)
    if absent := [f"{i['island']} {i['state']}" for i in status["islands"] if i["state"] != "live"]:
        parts.append(", ".join(absent))
    parts.extend(harmful_islands(status))
    parts.extend(link_lines.troubles(status))
    parts.extend(f"ALERT {alert}" for alert in status.get("alerts", ()))
    return "  ".join(parts)


def participants(status: RunStatus) -> str:
    """Return the mean participants of recent merges, noting if they exceed the islands alive."""
    mean = status["participants"]
    recent = " in recent merges" if round(mean, 1) > status["alive"] else ""
    return f"{mean:.1f}{recent}"


def announce(before: RunStatus | None, after: RunStatus) -> list[str]:
    """Return one line for each event since a status, with the elapsed time of the run.

    The events are those that the fleet has recorded. Without them, as at the first look, they are
    what the same rule finds between the two statuses. Islands with the same news share a line.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for stamp, text, island in _news(before, after):
        news = text.removeprefix(island) if island else text
        groups.setdefault((stamp, news), []).extend([island] if island else [])
    lines = [f"{stamp}  {_subject(names, news)}" for (stamp, news), names in groups.items()]
    known = before is not None and before.get("evaluation") is not None
    if (evaluation := after.get("evaluation")) is not None and not known:
        look_time, last_time = duration(evaluation["look_s"]), duration(evaluation["last_s"])
        stamp = duration(after["elapsed_s"])
        lines.append(f"{stamp}  an evaluation takes {look_time}, the final one {last_time}")
    return lines


def _news(before: RunStatus | None, after: RunStatus) -> Iterator[tuple[str, str, str]]:
    """Yield each event: its time, its text, and the island that the text begins with or empty."""
    stamp = duration(after["elapsed_s"])
    found = [*events_between(before, after)]
    if before is None or "events" not in after:
        for event in found:
            yield stamp, event.text, _named(event.text, event.island)
        return
    known = before.get("events") or ()
    newest = known[-1]["unix_s"] if known else -math.inf
    since_s = -math.inf if known else before["elapsed_s"]
    phases = [event.text for event in found if event.kind == "phase"]
    for seen in after["events"]:
        if seen["unix_s"] <= newest or seen["elapsed_s"] < since_s:
            continue
        if seen["kind"] == "phase":
            if before["phase"] == after["phase"]:
                continue  # the change was announced when the status showed it
            phases = []
        yield duration(seen["elapsed_s"]), seen["text"], _named(seen["text"], seen["island"])
    for text in phases:  # the fleet records the event a moment after it has shown the status
        yield stamp, text, ""


def _named(text: str, island: str | None) -> str:
    return island if island is not None and text.startswith(f"{island} ") else ""


PLURAL = {" is ": " are ", " has ": " have ", " was ": " were "}
"""The verbs with which the news of an island begin, and those of several islands."""


def _subject(names: Sequence[str], news: str) -> str:
    """Return news with their subject: the islands, of which many are only counted."""
    if not names:
        return news
    if len(names) == 1:
        return f"island {names[0]}{news}"
    for one, several in PLURAL.items():
        if news.startswith(one):
            news = several + news.removeprefix(one)
            break
    shown = f"islands {', '.join(names)}" if len(names) <= NAMES else f"{len(names)} islands"
    return shown + news


def harmful_islands(status: RunStatus) -> Iterator[str]:
    """Yield a line for each island whose last measured contributions were harmful."""
    for island in status["islands"]:
        if (count := island.get("harmful_contributions", 0)) >= IN_A_ROW:
            name, effect = island["island"], island.get("contribution_effect")
            yield (
                f"the last {count} measured contributions of {name} raised the held-out loss "
                f"(by {number(effect, 4)} at the last one)"
            )


def why_not_durable(status: RunStatus | None) -> str:
    """Return why nothing can be made durable now; empty if it can."""
    return status["figures"]["not_durable"] if status and status["figures"] else ""


def damage_of(status: RunStatus | None) -> str:
    """Return the damage that the last restart found in the run's files; empty if none."""
    return status["figures"].get("damage", "") if status and status["figures"] else ""


def judging_progress(status: RunStatus) -> str:
    """Return the progress of evaluating the final model; empty if that has not begun."""
    evaluation = status.get("evaluation")
    if evaluation is None or evaluation["wanted"] == 0:
        return ""
    left_s = evaluation["last_s"] * (1 - evaluation["done"] / evaluation["wanted"])
    progress = f"{evaluation['done']} of {evaluation['wanted']} batches"
    return f"evaluating the final model: {progress}, left {duration(left_s)}"
