"""The command `archipelago replay`, which rebuilds a run from its tape and checks it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.options import FAILED, Json
from archipelago.cli.tables import figures_table
from cluster.storage.files import json_text


def replay(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run.")],
    as_json: Json = False,
) -> None:
    """Rebuild a run from its tape, compare it bit for bit, and check every invariant.

    The comparison is with the files that the run left. The invariants are checked after every
    event.

    Example: archipelago replay runs/demo
    """
    from archipelago.lab.checks.replay import replay

    result = replay(run_dir)
    if as_json:
        print(json_text(result))
    else:
        Console().print(figures_table(result))
    if not result["exact"] or result["violations"]:
        raise typer.Exit(FAILED)
