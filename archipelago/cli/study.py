"""The command `archipelago study`: a grid of runs in virtual time."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.formatting import duration
from archipelago.cli.options import FAILED, INTERRUPTED, Json, Overrides
from cluster.storage.files import json_text, write_json


def study(
    path: Annotated[
        Path, typer.Argument(metavar="STUDY.toml", help="A base, arms, axes and seeds.")
    ],
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each core.")] = 0,
    retry: Annotated[bool, typer.Option("--retry", help="Train failed cells again.")] = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Train nothing: print existing and missing cells."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a grid of configurations and seeds in virtual time on all cores, paired by seed.

    Every cell is a file, which names the command that trains it. Existing cells are not trained
    again. The table, curves and pictures are next to the cells. Ctrl-C drops the unfinished cells
    and sums up the others; the same command continues from there.

    Example: archipelago study examples/studies/modes.toml
    """
    from archipelago.lab.report.written import write_study_report
    from archipelago.lab.study import cells as study_cells
    from archipelago.lab.study import pictures
    from archipelago.lab.study import text as words
    from archipelago.lab.study import training_jobs as work
    from archipelago.lab.study.plan import read
    from archipelago.lab.study.result import summed
    from archipelago.lab.study.task_metrics import check_metric

    console = Console(stderr=as_json, soft_wrap=True, highlight=False)
    definition = read(path, overrides)
    files = study_cells.CellFiles(definition.folder / "cells")
    cells = definition.cells
    cell_results = work.found(files, cells, retry=retry)
    missing = {key: cell for key, cell in cells.items() if key not in cell_results}
    check_metric(definition, cell_results)
    interrupted = False
    console.print(
        f"{definition.name}: {len(cells)} cells, {len(cell_results)} of them are there already"
    )
    if plan:
        for row in definition.rows:
            for cell in row.cells:
                state = "there" if cell.key in cell_results else "missing"
                files.ask(cell)
                console.print(
                    f"{state:>7}  {row.label}, seed {cell.seed}: {files.command(cell.key)}"
                )
    else:
        labels = {
            cell.key: f"{r.label}, seed {cell.seed}" for r in definition.rows for cell in r.cells
        }
        began_s = time.monotonic()

        def done(key: str, cell: study_cells.CellResult) -> None:
            cell_results[key] = cell
            passed_s = time.monotonic() - began_s
            count = len(cell_results) - (len(cells) - len(missing))
            left_s = passed_s / count * (len(missing) - count)
            loss = cell.failed or f"{cell.figure('heldout_loss'):.4f}"
            console.print(
                f"{duration(passed_s)}  {len(cell_results)}/{len(cells)}  {labels[key]}: {loss}"
                f"  left {duration(left_s)}"
            )

        try:
            work.make(files, missing, jobs or os.cpu_count() or 1, done)
        except KeyboardInterrupt:
            interrupted, cell_results = True, work.found(files, cells, retry=False)
            console.print(
                f"interrupted: {len(cell_results)} of {len(cells)} cells are trained; the same "
                "command continues from there"
            )
    result = summed(definition, cell_results)
    report = result.json()
    if not plan:
        definition.folder.mkdir(parents=True, exist_ok=True)
        text = words.table(result) + "\n" + words.curves(result)
        (definition.folder / "table.txt").write_text(text, encoding="utf-8")
        write_json(definition.folder / "study.json", report)
        report["files"] = [
            str(definition.folder / "table.txt"),
            str(definition.folder / "study.json"),
            *map(str, pictures.drawn(result, definition.folder)),
            str(write_study_report(result, definition.folder, datetime.now().astimezone())),
        ]
    if as_json:
        print(json_text(report))
    elif not plan:
        console.print(words.table(result), words.curves(result), sep="\n", markup=False)
        console.print("in " + ", ".join(map(str, report["files"])), markup=False)  # type: ignore[arg-type]
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if report["failed"]:
        raise typer.Exit(FAILED)
