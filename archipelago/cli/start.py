"""The commands for a first start: `init` writes files to start from, `demo` runs the example."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from archipelago.cli.formatting import amount
from archipelago.cli.options import FAILED, Json, Overrides, RunDir, Verbose, on_this_machine
from archipelago.cli.train import train
from cluster.storage.files import json_text
from coordinator.errors import ArchipelagoError, UserMistake

SHORT = (
    "task.preset=byte-tiny",
    "run.steps=60",
    "faults.plan=[{at_step = 20, kind = 'kill', island = 'local-2'}]",
)
"""The overrides that make the demo a check of one minute on two cores."""
LINES = 3
"""The lines of text that the demo's model writes."""
WIDEST = 76
"""Characters of such a line; the rest of a longer one becomes the next line."""
MOST_TOKENS = 400
"""Tokens after which the model stops, even if it has written fewer lines."""


def init(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A new or empty directory.", callback=on_this_machine),
    ],
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
    run_dir: RunDir = None,
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
            config_path,
            changed,
            run_dir=run_dir,
            verbose=verbose,
            as_json=as_json,
            closing=_report_line if as_json else closing_lines,
        )
    if check and (wrong := problems(summary)):
        for line in wrong:
            print(f"archipelago: demo --check: {line}", file=sys.stderr)
        raise typer.Exit(FAILED)


def closing_lines(run_dir: Path, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the last lines of a demo: where its report is, and some text of its model."""
    yield from _report_line(run_dir, summary)
    try:
        written = own_text(run_dir)
    except ArchipelagoError as error:  # the run has ended well
        yield f"the model has written no text: {error}"
        return
    tokens, loss = amount(summary["tokens_trained"]), summary["heldout_loss"]
    score = "" if loss is None else f", at a held-out loss of {loss:.2f}"
    yield f"the model wrote these lines; after {tokens} tokens{score}, they are rough:"
    yield from written


def own_text(run_dir: Path, lines: int = LINES) -> list[str]:
    """Return lines that the model of a run writes after a line break, the same on every call.

    Errors: `UserMistake` if the model cannot be read, or is no model of text.
    """
    from archipelago.trained_model import trained_model
    from islands.text_model import Sampling

    text = ""
    for piece in trained_model(str(run_dir)).continued("\n", MOST_TOKENS, Sampling()):
        text += piece
        if len(cut_lines(text)) > lines:
            break
    return cut_lines(text)[:lines]


def cut_lines(text: str) -> list[str]:
    """Return the lines of a text that are not blank, cut for a terminal.

    A character that cannot be printed becomes U+FFFD.
    """
    from islands.text_model import INCOMPLETE

    shown = "".join(c if c.isprintable() or c == "\n" else INCOMPLETE for c in text.expandtabs())
    return [
        part
        for line in shown.split("\n")
        for at in range(0, len(line), WIDEST)
        if (part := line[at : at + WIDEST].rstrip())
    ]


def _report_line(run_dir: Path, summary: Mapping[str, Any]) -> Iterator[str]:
    """Write the report of a run, and yield the line that names it, or why there is none."""
    from archipelago.lab.report.written import write_run_report

    del summary
    try:
        yield f"the report is in {write_run_report(run_dir, datetime.now().astimezone())}"
    except UserMistake as error:  # the run has ended well
        yield f"there is no report: {error}"


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
