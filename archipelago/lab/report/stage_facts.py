"""The facts of a run for the stages of a roll-out, from its summary, events and metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from archipelago.lab.checks.rollout import Harmed, StageFacts
from archipelago.lab.report.run_record import RunRecord
from cluster.config.fault_kinds import FaultKind
from cluster.config.interval_inputs import model_bytes
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.fleet.trouble_events import DOWN
from coordinator.errors import UserMistake

KILLS = (FaultKind.KILL, FaultKind.NODE)
DIED = "its process ended"
"""The reason with which a loss by the death of a process is reported."""
PLAN_KEYS = ("every", "wire")


def stage_facts(
    record: RunRecord, expected_loss: float | None = None, plan: Mapping[str, Any] | None = None
) -> StageFacts:
    """Return the facts of a run.

    `plan`: the plan whose bytes the run is compared with; None: its own configuration.

    Errors: `UserMistake` if the configuration of the run cannot be read.
    """
    config = parse(record.config, origin=f"{record.run_dir}/config.toml")
    if config.run.mode.sums_gradients:
        raise UserMistake(
            f'run {record.run_dir} is of run.mode = "{config.run.mode}", which sums gradients; the '
            "stages are for runs that merge contributions"
        )
    up, down = (record.summary.get(f"{each}_bytes_per_token") for each in ("up", "down"))
    last = record.last
    return StageFacts(
        run=record.name,
        ended=record.state == "ended",
        t=int(last.get("t", 0)),
        steps=config.run.steps,
        regions=[*_regions(record, config)],
        bytes_per_token=None if up is None or down is None else up + down,
        planned_bytes_per_token=_planned(record, config, plan),
        heldout_loss=record.summary.get("heldout_loss"),
        expected_loss=expected_loss,
        drained=[*_drained(record.events)],
        kills=[*_kills(record)],
        cuts=[*_cuts(record, config)],
        uptime=record.summary.get("uptime"),
        alerts=[*_alerts(record.events)],
    )


def read_plan(path: Path) -> Mapping[str, Any]:
    """Read what `archipelago plan CLUSTER.toml --json` has printed.

    Errors: `UserMistake` if the file is none.
    """
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserMistake(f"--plan {path} cannot be read: {error}") from error
    missing = [key for key in PLAN_KEYS if not isinstance(plan, dict) or key not in plan]
    if missing:
        raise UserMistake(
            f"--plan {path} has no {' and no '.join(missing)}: write it with `archipelago plan "
            "CLUSTER.toml --json`"
        )
    return plan


def _regions(record: RunRecord, config: Config) -> Iterator[str]:
    """Yield the regions, or groups without one, whose islands contributed."""
    of_group = _regions_by_group(config)
    counts = _contributions(record.rows)
    named = {name: row["group"] for row in record.rows for name, row in _islands(row).items()}
    yield from sorted(
        {str(of_group.get(named[name], named[name])) for name in counts if counts[name]}
    )


def _regions_by_group(config: Config) -> dict[str, str]:
    """Return the region of each group; a group without one counts as a region."""
    return {group.group: str(group.region or group.group) for group in config.islands}


def _contributions(rows: Sequence[Mapping[str, Any]], since_s: float = -1.0) -> dict[str, int]:
    """Return the contributions of each island from a time on."""
    first, last = dict[str, int](), dict[str, int]()
    for row in rows:
        for name, island in _islands(row).items():
            if row["elapsed_s"] <= since_s:
                first[name] = island["contributions"]
            last[name] = max(last.get(name, 0), island["contributions"])
    return {name: count - first.get(name, 0) for name, count in last.items()}


def _islands(row: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["island"]: each for each in row.get("islands", ())}


def _planned(record: RunRecord, config: Config, plan: Mapping[str, Any] | None) -> float | None:
    """Return the bytes per token of the plan's interval and wire on this model.

    Each island sends and receives the whole model once in H steps.
    """
    parameters = record.summary.get("parameters")
    steps = sum(_most_steps(record.rows).values())
    tokens = record.summary.get("tokens_trained")
    if plan is not None:
        sync = {"wire_up": plan["wire"], "wire_down": plan["wire"], "every": plan["every"]}
        config = parse(
            {
                **config.model_dump(mode="json", exclude_none=True),
                "sync": {**config.sync.model_dump(mode="json", exclude_none=True), **sync},
            },
            origin="--plan",
        )
    if not parameters or not steps or not tokens:
        return None
    model = model_bytes(config, parameters)
    every = min(each for _, each in config.sync.stretches)
    return parameters * (model.up + model.down) / every * steps / tokens


def _most_steps(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        for name, island in _islands(row).items():
            found[name] = max(found.get(name, 0), island["steps"])
    return found


def _drained(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the islands that left after they were drained."""
    draining: set[str] = set()
    for event in events:
        island = event.get("island")
        if event.get("kind") == "drain" and island:
            draining.add(island)
        elif event.get("kind") == "leave" and island in draining:
            draining.discard(island)
            yield island


def _kills(record: RunRecord) -> Iterator[Harmed]:
    """Yield the islands whose process died: on purpose, or by itself; services do not count."""
    last_s: dict[str, float] = {}
    known = _contributions(record.rows)
    for event in record.events:
        island, text = event.get("island"), str(event.get("text", ""))
        on_purpose = any(f": {kind} on purpose" in text for kind in KILLS)
        by_itself = event.get("kind") == "loss" and DIED in str(event.get("why", ""))
        if island in known and (on_purpose or by_itself):
            last_s[str(island)] = event["elapsed_s"]
    for island, at_s in last_s.items():
        yield Harmed(island, _contributions(record.rows, at_s)[island] > 0)


def _cuts(record: RunRecord, config: Config) -> Iterator[Harmed]:
    """Yield the islands and links that were cut off."""
    of_group = _regions_by_group(config)
    found: dict[str, list[float]] = {}
    for event in record.events:
        text, kind = str(event.get("text", "")), event.get("kind")
        if f": {FaultKind.CUT} on purpose" in text and event.get("island"):
            found.setdefault(str(event["island"]), []).append(event["elapsed_s"])
        elif kind == "link" and event.get("why") == DOWN:
            found.setdefault(f"link {event.get('link')}", []).append(event["elapsed_s"])
    groups = {name: row["group"] for each in record.rows for name, row in _islands(each).items()}
    for target, times_s in found.items():
        again = _contributions(record.rows, max(times_s))
        mine = [
            name for name in again
            if target == name or target == f"link {of_group.get(groups[name], groups[name])}"
        ]  # fmt: skip
        yield Harmed(target, any(again[name] > 0 for name in mine))


def _alerts(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the alerts that were not over at the end."""
    open_alerts: dict[str, str] = {}
    for event in events:
        why = re.sub(r"\d+", "#", str(event.get("why", "")))  # its numbers change meanwhile
        if event.get("kind") == "alert":
            open_alerts[why] = str(event.get("why", ""))
        elif event.get("kind") == "alert over":
            open_alerts.pop(why, None)
    yield from open_alerts.values()
