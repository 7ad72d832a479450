"""The command `archipelago doctor`: what is wrong with a cluster, and what to do."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.options import FAILED, Json
from cluster.storage.files import json_text
from coordinator.errors import UserMistake


def doctor(
    links: Annotated[
        bool, typer.Option("--links", help="Measure the links between the head and all nodes.")
    ] = False,
    megabytes: Annotated[
        int, typer.Option("--mb", min=1, help="MiB of the object sent over each link.")
    ] = 100,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="A Ray cluster; RAY_ADDRESS."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find what limits a Ray cluster, and name the setting; exit code 1 if something is broken.

    Example: archipelago doctor --links --address 10.8.1.1:6379
    """
    if not links:
        raise UserMistake("`archipelago doctor` checks links so far: give --links")
    if (head := address or os.environ.get("RAY_ADDRESS")) is None:
        raise UserMistake("no cluster: give --address HOST:6379, or set RAY_ADDRESS")
    from cluster.launch.link_findings import Severity, findings_of
    from cluster.launch.links import measured

    console = Console(file=sys.stderr if as_json else sys.stdout)
    found = measured(head, megabytes * 2**20, lambda text: console.print(text, soft_wrap=True))
    findings = findings_of(found)
    is_ok = not any(each.severity is Severity.PROBLEM for each in findings)
    if as_json:
        rows = [
            {"from": each.source.name, "to": each.target.name, "rtt_ms": each.rtt_ms,
             "gbit_s": each.gbit_s, "window_gbit_s": each.window_gbit_s}
            for each in found
        ]  # fmt: skip
        print(json_text({"ok": is_ok, "findings": [*map(asdict, findings)], "links": rows}))
    else:
        for each in findings:
            console.print(
                f"{each.severity}: {each.where}: {each.what}\n  {each.hint}",
                soft_wrap=True,
                highlight=False,
            )
        if not findings:
            console.print("nothing limits these links but the links themselves")
    if not is_ok:
        raise typer.Exit(FAILED)
