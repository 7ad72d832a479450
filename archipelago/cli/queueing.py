"""The command `archipelago queue`: which runs a cluster has, which wait, and for what."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from archipelago.cli.formatting import GAP, WIDTH
from archipelago.cli.options import Json
from cluster.storage.files import json_text
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    from cluster.queue.queue_status import QueueStatus


def queue(
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="HOST:PORT", help="The Ray cluster; RAY_ADDRESS by default."
        ),
    ] = None,
    quotas: Annotated[
        Path | None,
        typer.Option(
            "--set", metavar="QUOTAS.toml", help="Replace the quotas of the cluster by this file's."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the runs of a cluster in order of priority: which are live, which wait, and for what.

    Quotas limit the islands and the resources of each owner. They are stored in the cluster.

    Example: archipelago queue --address 10.8.1.1:6379 --set quotas.toml
    """
    head = address or os.environ.get("RAY_ADDRESS")
    if head is None:
        raise UserMistake("no cluster: give --address HOST:6379, or set RAY_ADDRESS")
    from cluster.launch.cluster_queue import queue_of_cluster

    status = queue_of_cluster(os.path.expandvars(head), quotas)
    if as_json:
        print(json_text({**status}))
        return
    console = Console(highlight=False)
    width = max(WIDTH, console.width if console.is_terminal else 0)
    if quotas is not None:
        console.print(f"the quotas of {quotas} are set; they hold for runs that start from now on")
    if status["trouble"] is not None:
        console.print(f"the queue: {status['trouble']}")
    if status["runs"]:
        console.print(_runs(status), width=width)
    elif status["trouble"] is None:
        console.print("no run")
    if status["quotas"]:
        console.print(_quotas(status), width=width)


def _runs(status: QueueStatus) -> Table:
    right = [Column(justify="right", no_wrap=True) for _ in range(3)]
    table = Table.grid(
        Column(), Column(), Column(no_wrap=True), *right, Column(), padding=(0, GAP, 0, 0)
    )
    table.add_row("run", "owner", "state", "priority", "islands", "taken", "why", style="dim")
    for each in status["runs"]:
        table.add_row(
            each["run"],
            each["owner"],
            each["state"],
            str(each["priority"]),
            f"{each['held']}/{each['wanted']}",
            str(len(each["withheld"])),
            each["why"],
        )
    return table


def _quotas(status: QueueStatus) -> Table:
    table = Table.grid(Column(), Column(), Column(justify="right"), padding=(0, GAP, 0, 0))
    table.add_row("quota of", "resource", "used", style="dim")
    for each in status["quotas"]:
        table.add_row(each["owner"], each["name"], f"{each['used']:g}/{each['limit']:g}")
    return table
