"""The facts of a run for the stages of a roll-out, from its summary, events and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from archipelago.lab.checks.rollout import StageFacts
from archipelago.lab.report.run_record import RunRecord
from archipelago.lab.report.stage_faults import (
    contributions,
    cuts,
    drained,
    islands_in,
    kills,
    links_of,
)
from cluster.config.interval_inputs import model_bytes
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.fleet.trouble_events import open_troubles
from coordinator.errors import UserMistake

PLAN_KEYS = ("every", "wire")
SOUND_ENDS = ("live", "left")
"""The last states of an island that contributed and did not fail."""


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
        evaluates=record.state == "live" and bool(record.summary),
        t=int(last.get("t", 0)),
        steps=config.run.steps,
        regions=[*_regions(record, config)],
        bytes_per_token=None if up is None or down is None else up + down,
        planned_bytes_per_token=_planned(record, config, plan),
        heldout_loss=record.summary.get("heldout_loss"),
        initial_loss=record.summary.get("initial_heldout_loss"),
        expected_loss=expected_loss,
        drained=[*drained(record.events)],
        kills=[*kills(record)],
        cuts=[*cuts(record, config)],
        uptime=record.summary.get("uptime"),
        alerts=[*open_troubles(record.events).values()],
        unsound_ends=[*_unsound_ends(record)],
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
    links, counts = links_of(record, config), contributions(record.rows)
    yield from sorted({links[name] for name in counts if counts[name]})


def _unsound_ends(record: RunRecord) -> Iterator[str]:
    """Yield the islands that contributed and were neither live at the end nor had left."""
    last = dict[str, str]()
    for row in record.rows:
        last |= {name: island["state"] for name, island in islands_in(row).items()}
    for name, count in sorted(contributions(record.rows).items()):
        if count and last[name] not in SOUND_ENDS:
            yield f"{name} is {last[name]}"


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
        for name, island in islands_in(row).items():
            found[name] = max(found.get(name, 0), island["steps"])
    return found
