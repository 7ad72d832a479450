"""The runs of a folder or a cluster, with their owner, progress and cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cluster.config.load import load
from cluster.config.schema import Config
from cluster.fleet.metrics_row import status_of_row
from cluster.fleet.run_identity import identity_of
from cluster.launch.remote_status import status_at
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.metrics_log import LOOKS, last_look
from coordinator.errors import UserMistake

RunState = Literal["live", "finished", "died", "unreadable"]


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run in the list; None: not known."""

    run: str
    """The name of the run."""
    state: RunState
    """Whether it is live, has finished, or died and can be resumed."""
    owner: str | None = None
    """The value of `run.owner`, or else the user of its directory."""
    priority: int | None = None
    """`run.priority`: runs with a larger number are more important."""
    alive: int = 0
    """Islands that are live."""
    wanted: int = 0
    """Islands that the run should have."""
    t: int | None = None
    """The syncer step."""
    steps: int | None = None
    """The last syncer step of the run, T."""
    tokens: int | None = None
    """Tokens that all islands have trained."""
    egress_bytes: int | None = None
    """Bytes of contributions and of publications to all islands, as sent."""
    device_hours: float | None = None
    """Hours for which islands held devices, summed over devices."""
    usd: float | None = None
    """`device_hours` at each group's `usd_per_hour`; None unless every group has one."""
    why: str = ""
    """The reason if it cannot be read."""


def listed_runs(folder: Path) -> list[ListedRun]:
    """Return the runs of a folder: live ones first, by priority, then by name.

    Errors: `UserMistake` if there is no such folder.
    """
    if not folder.is_dir():
        raise UserMistake(
            f"{folder} is no folder; give the one in which your runs are, such as runs"
        )
    found = [listed_run(path.parent) for path in folder.glob(f"*/{runs.CONFIG}")]
    return sorted(found, key=_order)


def _order(run: ListedRun) -> tuple[bool, int, str]:
    return run.state != "live", -(run.priority or 0), run.run


def listed_run(run_dir: Path) -> ListedRun:
    """Return the row of one run directory; one that cannot be read has the reason."""
    name = run_dir.name
    try:
        config = load(run_dir / runs.CONFIG)
        owner = config.run.owner or run_dir.owner()
        is_live = runs.live_of(run_dir) is not None
        if not is_live and (run_dir / runs.SUMMARY).exists():
            return _of_the_summary(config, name, owner, run_dir / runs.SUMMARY)
        status = (status_at(run_dir) if is_live else None) or _last(run_dir)
    except (UserMistake, OSError, ValueError, KeyError) as error:
        return ListedRun(name, "unreadable", why=str(error).splitlines()[0])
    state: RunState = "live" if is_live else "died"
    return row_of(config, name, owner, state, status)


def row_of(
    config: Config, name: str, owner: str | None, state: RunState, status: RunStatus | None
) -> ListedRun:
    """Return the row of a run that has not ended, from its status; None: it is starting."""
    if status is None:
        wanted = len(config.island_names)
        return ListedRun(name, state, owner, config.run.priority, wanted=wanted)
    cost = identity_of(config, name, 0, dict(status))
    return ListedRun(
        run=name,
        state=state,
        owner=owner,
        priority=config.run.priority,
        alive=status["alive"] if state == "live" else 0,
        wanted=status["wanted"],
        t=status["t"],
        steps=status["steps"],
        tokens=status["tokens_trained"],
        egress_bytes=_egress_bytes(status),
        device_hours=_number(cost["device_hours"]),
        usd=_number(cost["usd"]),
    )


def row_of_status(name: str, status: RunStatus) -> ListedRun:
    """Return the row of a run in a cluster, of which only the status can be had."""
    return ListedRun(
        name, "live", alive=status["alive"], wanted=status["wanted"], t=status["t"],
        steps=status["steps"], tokens=status["tokens_trained"],
        egress_bytes=_egress_bytes(status),
    )  # fmt: skip


def _of_the_summary(config: Config, name: str, owner: str, path: Path) -> ListedRun:
    figures: Mapping[str, Any] = json.loads(path.read_text())
    return ListedRun(
        run=name,
        state="finished",
        owner=owner,
        priority=config.run.priority,
        wanted=len(config.island_names),
        t=config.run.steps,
        steps=config.run.steps,
        tokens=figures["tokens_trained"],
        egress_bytes=_sent_bytes(figures),
        device_hours=_number(figures.get("device_hours")),
        usd=_number(figures.get("usd")),
    )


def _egress_bytes(status: RunStatus) -> int | None:
    """Return the bytes that a run has sent so far; None before its first figures."""
    figures = status["figures"]
    return None if figures is None else figures["up_bytes"] + figures["down_bytes"]


def _sent_bytes(figures: Mapping[str, Any]) -> int | None:
    """Return the bytes that a finished run sent, up and down."""
    up, down = (_number(figures.get(f"{way}_bytes_per_token")) for way in ("up", "down"))
    return None if up is None or down is None else round((up + down) * figures["tokens_trained"])


def _last(run_dir: Path) -> RunStatus | None:
    text = last_look(run_dir / LOOKS)
    return None if text is None else status_of_row(text)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
