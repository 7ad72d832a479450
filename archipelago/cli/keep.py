"""The commands about the files of a run: verify and backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.options import FAILED, Json, NamedRun, on_this_machine
from cluster.storage import runs
from cluster.storage.files import json_text
from coordinator.errors import ArchipelagoError


def verify(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run.")],
    replayed: Annotated[
        bool,
        typer.Option("--replay", help="Also rebuild the run from its tape, and compare it."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every digest of a run, its tape, and its versions; exit code 1 if something is wrong.

    Example: archipelago verify runs/first
    """
    from cluster.launch.verify import verify

    found = verify(run_dir)
    if replayed:
        from archipelago.lab.checks.replay import replay

        try:
            report = replay(run_dir)
        except ArchipelagoError as error:
            found.problems.append(f"it cannot be replayed: {error}")
        else:
            found.count("replayed", int(str(report["events"])))
            if not report["exact"] or report["violations"]:
                why = report["differs"] or report["violated"] or report["damage"]
                found.problems.append(f"the replay is not exact: {why or report['compared']}")
    if as_json:
        print(
            json_text(
                {"ok": found.ok, "problems": found.problems, "notes": found.notes,
                 "checked": found.checked}
            )
        )  # fmt: skip
    else:
        console = Console(highlight=False, soft_wrap=True)
        for kind, count in found.checked.items():
            console.print(f"{kind:14} {count}", markup=False)
        for line in (*(f"note: {each}" for each in found.notes), *found.problems):
            console.print(line, markup=False)
        plural = "s" if len(found.problems) != 1 else ""
        console.print("ok" if found.ok else f"{len(found.problems)} problem{plural}")
    if not found.ok:
        raise typer.Exit(FAILED)


def backup(
    run: NamedRun,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DEST", help="A folder that does not exist.", callback=on_this_machine
        ),
    ],
    as_json: Json = False,
) -> None:
    """Copy the directory of a run, which may be live, to a folder that verifies and resumes.

    Example: archipelago backup runs/first /backups/first-monday
    """
    from cluster.launch.backup import backup

    made = backup(runs.here(run), path)
    figures = {
        "path": str(made.path),
        "t": made.t,
        "events": made.events,
        "merges_lost": made.merges_lost,
        "files": made.files,
        "bytes": made.nbytes,
    }
    if as_json:
        print(json_text(figures))
        return
    at = "" if made.t is None else f" at step {made.t}"
    Console(highlight=False, soft_wrap=True).print(
        f"{made.files} files, {made.nbytes / 1e6:.1f} MB{at}; to continue from this copy:\n"
        f"archipelago run {made.path}/config.toml --resume --run-dir {made.path}",
        markup=False,
    )
