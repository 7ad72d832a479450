"""The commands that show a run: `status` once, `top` continuously, `page` in a browser."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.display import Display
from archipelago.cli.formatting import WIDTH
from archipelago.cli.live_table import render, time_table
from archipelago.cli.options import ClusterAddress, Json, RunName
from archipelago.cli.terminal_keys import TerminalKeys
from cluster.launch.page_link import page_link
from cluster.launch.status_stream import status_stream
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.files import json_text


def status(name: RunName = None, address: ClusterAddress = None, as_json: Json = False) -> None:
    """Show the islands and fragments of a run once.

    Example: archipelago status runs/demo --json
    """
    with closing(status_stream(name, address, 0.0)) as seen:
        first_status = next(seen)
    if as_json:
        print(json_text(first_status))
        return
    console = Console()
    width = console.width if console.is_terminal else WIDTH
    console.print(render(first_status, width=width))
    if any(island.get("time_s") for island in first_status["islands"]):
        console.print("\nthe time of the islands, in per cent of their life", style="dim")
        console.print(time_table(first_status["islands"], min(width, WIDTH)))


def top(
    name: RunName = None,
    address: ClusterAddress = None,
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, metavar="S", help="Seconds between two looks.")
    ] = 1.0,
) -> None:
    """Show the islands and fragments of a run until it ends; Ctrl-C or q does not stop the run.

    Keys: s sorts, the arrows page, t shows the time of each island, f all fragments, q ends it.
    Without a terminal it prints a line now and then.

    Example: archipelago top runs/demo --every 2
    """
    console = Console()
    with TerminalKeys() as keys, Display(console) as display:
        keys_work = keys.readable and console.is_terminal
        display.view = replace(display.view, interactive=keys_work)
        for run_status in status_stream(name, address, 0.0):
            display.show(run_status)
            if not _watched(display, keys, run_status, every_s):
                return


def _watched(display: Display, keys: TerminalKeys, status: RunStatus, for_s: float) -> bool:
    """Apply the keys that are pressed in this time to the display; return False after `q`."""
    until_s = time.monotonic() + for_s
    while (left_s := until_s - time.monotonic()) > 0:
        for key in keys.within(left_s):
            rows = display.view.fitting(Console().size.height).rows
            view = replace(display.view, rows=rows).pressed(key, len(status["islands"]))
            if view is None:
                return False
            display.view = view
            display.draw(status)
    return True


def page(name: RunName = None, as_json: Json = False) -> None:
    """Print a link to the live page of a run on this machine; a browser can open it once.

    Example: archipelago page runs/demo
    """
    link = page_link(runs.here(name))
    print(json_text({"page": link}) if as_json else link)
