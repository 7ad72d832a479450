"""The command `archipelago list`: the runs of a folder or a cluster, with their owner and cost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from archipelago.cli.formatting import GAP, WIDTH, amount, number
from archipelago.cli.options import Json
from cluster.storage.files import json_text

if TYPE_CHECKING:
    from cluster.launch.run_list import ListedRun


def list_runs(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="The folder with the run directories.")
    ] = Path("runs"),
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="List the live runs of this Ray cluster instead of a folder.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List runs with owner, priority, islands, tokens, egress, device-hours and dollars.

    Live runs come first, those with a larger run.priority before the others.

    Example: archipelago list runs --json
    """
    from cluster.launch.run_list import listed_runs

    if address is None:
        found = listed_runs(folder)
    else:
        from cluster.launch.cluster_runs import runs_of_cluster

        found = runs_of_cluster(os.path.expandvars(address))
    if as_json:
        print(json_text({"runs": [asdict(each) for each in found]}))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    if not found:
        console.print("no run")
        return
    console.print(_table(found))


def _table(found: Sequence[ListedRun]) -> Table:
    names = ("priority", "islands", "t", "tokens", "egress", "device-hours", "usd")
    right = [Column(name, justify="right", no_wrap=True) for name in names]
    table = Table.grid(
        Column("run"), Column("state"), Column("owner"), *right, padding=(0, GAP, 0, 0)
    )
    table.add_row("run", "state", "owner", *names, style="dim")
    for each in found:
        table.add_row(
            each.run,
            f"{each.state}: {each.why}" if each.why else each.state,
            each.owner or "-",
            "-" if each.priority is None else str(each.priority),
            f"{each.alive}/{each.wanted}",
            "-" if each.t is None else f"{each.t}/{each.steps}",
            "-" if each.tokens is None else amount(each.tokens),
            "-" if each.egress_bytes is None else f"{amount(each.egress_bytes)}B",
            number(each.device_hours, 2),
            number(each.usd, 2),
        )
    return table
