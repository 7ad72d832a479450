"""The commands for a first start: `init` writes files to start from, `demo` runs the example."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from archipelago.cli.options import FAILED, Json, Overrides, Verbose
from archipelago.cli.train import train
from cluster.storage.files import json_text
from coordinator.errors import UserMistake

SHORT = (
    "task.preset=byte-tiny",
    "run.steps=60",
    "faults.plan=[{at_step = 20, kind = 'kill', island = 'local-2'}]",
)
"""The overrides that make the demo a check of one minute on two cores."""


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory.")],
    as_json: Json = False,
) -> None:
    """Write a commented configuration and a task to start from.

    Example: archipelago init my-run && cd my-run && archipelago run run.toml
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserMistake(f"{folder} exists and is not empty; name another directory")
    written = copied("templates", folder)
    if as_json:
        print(json_text({"files": written}))
    else:
        Console(highlight=False, soft_wrap=True).print(
            f"wrote {' and '.join(written)}\n\n    cd {folder}\n    archipelago run run.toml\n",
            markup=False,
        )


def demo(
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    run_dir: Annotated[Path | None, typer.Option(help="Where to write; must be empty.")] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="A short run of a tiny model; exit code 1 if it went wrong."),
    ] = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Train a small model on four islands of this machine; one of them is killed on the way.

    Example: archipelago demo
    """
    with as_file(files("archipelago").joinpath("examples", "demo.toml")) as config_path:
        changed = [*(SHORT if check else ()), *overrides]
        summary = train(
            config_path, changed, run_dir=run_dir, verbose=verbose, as_json=as_json, reports=True
        )
    if check and (wrong := problems(summary)):
        for line in wrong:
            print(f"archipelago: demo --check: {line}", file=sys.stderr)
        raise typer.Exit(FAILED)


def copied(source: str, folder: Path) -> list[str]:
    """Copy the files of a folder of this package, and return the paths of the copies.

    Errors: `UserMistake` if `folder` cannot be written.
    """
    written: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in sorted(files("archipelago").joinpath(source).iterdir(), key=str):
            if each.is_file():
                path = folder / each.name
                path.write_bytes(each.read_bytes())
                written.append(str(path))
    except OSError as error:
        raise UserMistake(f"{folder} cannot be written: {error.strerror}") from error
    return written


def problems(summary: Mapping[str, Any]) -> list[str]:
    """Return the problems in the summary of a demo; empty if it went well."""
    found: list[str] = []
    before, after = summary["initial_heldout_loss"], summary["heldout_loss"]
    if after is None or not math.isfinite(after) or not after < 0.8 * before:
        found.append(f"the held-out loss went from {before} to {after}, not below 0.8 of that")
    if summary["faults"] != 1:
        found.append(f"{summary['faults']} faults happened, and one island was to be killed")
    if summary["merges"] < 1:
        found.append("nothing was merged")
    parts = ("merged", "discarded", "lost", "outstanding")
    counted = sum(summary[f"tokens_{part}"] for part in parts)
    if counted != summary["tokens_trained"]:
        found.append(f"{summary['tokens_trained']} tokens were trained and {counted} are counted")
    return found
