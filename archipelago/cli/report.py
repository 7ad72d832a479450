"""The commands `archipelago report` and `archipelago trace`, which show what a run has left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.options import Json, on_this_machine
from cluster.storage.files import json_text
from coordinator.errors import UserMistake


def report(
    names: Annotated[
        list[str], typer.Argument(metavar="RUN_DIR...", help="Run directories, or names of runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Where to write; report.html in the directory of one run, or here for several. "
            "Markdown goes to standard output by default.",
            callback=on_this_machine,
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="html or md.")] = "html",
    as_json: Json = False,
) -> None:
    """Write a report of runs, side by side: one file with curves, figures, events, configuration.

    A live, ended or crashed run has what its files have. The HTML file is at most 2 MB and loads
    nothing from the network.

    Example: archipelago report runs/first runs/second -o report.html
    """
    from archipelago.lab.report.run_record import find_run
    from archipelago.lab.report.written import ReportFormat, report_text, write_report

    formats = [each.value for each in ReportFormat]
    if form not in formats:
        raise UserMistake(f"--format {form}: not known; there are {' and '.join(formats)}")
    chosen = ReportFormat(form)
    run_dirs = found(names, find_run)
    text, records = report_text(run_dirs, chosen, datetime.now().astimezone())
    if out is None and chosen is ReportFormat.HTML:
        out = (run_dirs[0] if len(run_dirs) == 1 else Path()) / "report.html"
    path = None if out is None else write_report(out, text)
    if as_json:
        runs = [
            {"run": each.name, "state": each.state, "problems": [*each.problems]}
            for each in records
        ]
        written = None if path is None else str(path)
        markdown = text if path is None else None
        print(json_text({"file": written, "format": form, "runs": runs, "markdown": markdown}))
    elif path is None:
        print(text)
    else:
        console = Console(highlight=False, markup=False, soft_wrap=True)
        for record in records:
            for problem in record.problems:
                console.print(f"{record.name}: {problem}")
        console.print(f"the report is in {path}")


def found(names: Sequence[str], find: Callable[[str], Path]) -> list[Path]:
    """Return the run directories of these names.

    Errors: `UserMistake` with every name that is no run.
    """
    run_dirs: list[Path] = []
    problems: list[str] = []
    for name in names:
        try:
            run_dirs.append(find(name))
        except UserMistake as error:
            problems.append(str(error))
    if problems:
        raise UserMistake("\n".join(problems))
    return run_dirs


def trace(
    name: Annotated[
        str, typer.Argument(metavar="RUN_DIR", help="A run directory, or the name of a run.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Where to write; trace.json in the run directory.",
            callback=on_this_machine,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the timeline of a run for Perfetto (ui.perfetto.dev) or chrome://tracing.

    It has a lane for each island, the syncer and each shard, faults, and arrows from hand-ins to
    merges to adoptions.

    Example: archipelago trace runs/first -o trace.json
    """
    from archipelago.lab.report.run_record import find_run
    from archipelago.lab.report.trace import write_trace

    (run_dir,) = found([name], find_run)
    path = run_dir / "trace.json" if out is None else out
    made = write_trace(run_dir, path)
    if as_json:
        print(json_text({"file": str(path), "events": made.events, "problems": [*made.problems]}))
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for problem in made.problems:
        console.print(problem)
    console.print(f"{made.events:,} events are in {path}; open it in https://ui.perfetto.dev")
