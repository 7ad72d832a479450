"""The command `archipelago submit`, which hands a run over to a cluster."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.options import ConfigPath, Json, Overrides
from cluster.storage import runs
from cluster.storage.files import json_text


def submit(
    config_path: ConfigPath,
    address: Annotated[
        str, typer.Option(metavar="http://HEAD:8265", help="The cluster's job server.")
    ],
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    working_dir: Annotated[
        Path | None,
        typer.Option(
            help="A folder of yours to send along: your task's code.", exists=True, file_okay=False
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE", help="Ray label of the fleet's node; the head by default."
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Follow it, or leave once it is handed over.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Train as a job of a Ray cluster; the run continues when this terminal closes.

    Example: archipelago submit run.toml --address http://head:8265 --no-wait
    """
    from cluster.config.load import read
    from cluster.launch import job as submitting

    key, equals, value = (on or "").partition("=")
    problems = submitting.problems(address, working_dir)
    if on is not None and not (key and equals and value):
        problems.append(f"--on {on}: must look like KEY=VALUE")
    config = read(config_path, overrides).accepted(problems)
    name = runs.name_of(config, config_path, datetime.now().astimezone())
    job = submitting.submit(config, name, address, working_dir, {key: value} if on else None)
    console = Console(stderr=as_json, highlight=False, markup=False)
    if not wait:
        if as_json:
            print(json_text({"run": name, "address": address}))
        console.print(f"run {name} is submitted; `archipelago status {name}` from the cluster, or")
        console.print(f"`ray job logs {name} --address {address} --follow`")
        return
    output: list[str] = []

    def say(text: str) -> None:
        output.append(text)
        console.print(text, end="", soft_wrap=True)

    code = submitting.follow(job, say)
    if as_json:
        print(_last_json("".join(output)))
    if code != 0:
        raise typer.Exit(code)


def _last_json(output: str) -> str:
    """Return the summary, the last JSON object in the output of a job; `null` if there is none."""
    return next((line for line in reversed(output.splitlines()) if line.startswith("{")), "null")
