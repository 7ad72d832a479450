"""The commands that look at a run: status, once; top, again and again."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.display import Display
from archipelago.cli.live_table import render
from archipelago.cli.options import Cluster, Json, RunName
from cluster.launch.remote_status import from_json, status_at
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.files import json_text
from cluster.storage.metrics_log import LOOKS, last_look
from coordinator.errors import UserMistake


def status(name: RunName = None, address: Cluster = None, as_json: Json = False) -> None:
    """Islands and fragments of a run, once.

    Example: archipelago status runs/demo --json
    """
    with closing(looks(name, address, 0.0)) as seen:
        shown = next(seen)
    if as_json:
        print(json_text(shown))
    else:
        Console().print(render(shown))


def top(
    name: RunName = None,
    address: Cluster = None,
    every_s: Annotated[float, typer.Option("--every", min=0.1, metavar="S")] = 1.0,
) -> None:
    """Islands and fragments of a run, refreshed until it ends; Ctrl-C leaves the run alone.

    Where there is no terminal, a line now and then.

    Example: archipelago top runs/demo --every 2
    """
    with Display(Console()) as display:
        for shown in looks(name, address, every_s):
            display.show(shown)


def looks(name: str | None, address: str | None, every_s: float) -> Generator[RunStatus]:
    """What a run says of itself, so many seconds apart, until it is over; then what it said last.

    A run of this machine is asked by its own port, which needs no client of Ray; another by one
    client, as long as this goes on.

    Errors: `UserMistake` if there is no such run, or it cannot be heard.
    """
    live = runs.reach(name, address)
    if isinstance(live, Path):
        yield _last_status(live)
        return
    run_dir = runs.here(name) if live.pid else None
    while run_dir is not None and (seen := status_at(run_dir)) is not None:
        yield seen
        time.sleep(every_s)
    if run_dir is not None and runs.live_of(run_dir) is None:  # it has ended meanwhile
        yield _last_status(run_dir)
        return
    live.prepare()
    from cluster.launch.client import reached

    with reached(live) as ask:
        while True:
            shown: RunStatus = ask(lambda fleet: fleet.status.remote())
            yield shown
            if shown["phase"] == "finished":
                return
            time.sleep(every_s)


def _last_status(run_dir: Path) -> RunStatus:
    """What a run that is over said last."""
    if (said := last_look(run_dir / LOOKS)) is None:
        raise UserMistake(f"run {run_dir} is not live, and ended before it had anything to say")
    return from_json(said)
