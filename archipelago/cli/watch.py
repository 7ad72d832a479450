"""The commands that show a run: `status` once, `top` continuously."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.display import Display
from archipelago.cli.live_table import render
from archipelago.cli.options import Cluster, Json, RunName
from cluster.launch.status_stream import looks
from cluster.storage.files import json_text


def status(name: RunName = None, address: Cluster = None, as_json: Json = False) -> None:
    """Show the islands and fragments of a run once.

    Example: archipelago status runs/demo --json
    """
    with closing(looks(name, address, 0.0)) as seen:
        first_status = next(seen)
    if as_json:
        print(json_text(first_status))
    else:
        Console().print(render(first_status))


def top(
    name: RunName = None,
    address: Cluster = None,
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, metavar="S", help="Seconds between two looks.")
    ] = 1.0,
) -> None:
    """Show the islands and fragments of a run until it ends; Ctrl-C does not stop the run.

    Without a terminal it prints a line now and then.

    Example: archipelago top runs/demo --every 2
    """
    with Display(Console()) as display:
        for run_status in looks(name, address, every_s):
            display.show(run_status)
