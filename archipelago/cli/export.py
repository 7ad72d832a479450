"""The command `archipelago export`, which writes the model of a run to a file or a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.options import ClusterAddress, Json, NamedRun, on_this_machine
from cluster.storage import runs
from cluster.storage.files import json_text
from coordinator.errors import UserMistake

FORMATS = ("safetensors", "orbax", "hf")


def export(
    name: NamedRun,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="A new folder, or for safetensors a new name.safetensors.",
            callback=on_this_machine,
        ),
    ],
    at: Annotated[
        int | None,
        typer.Option("--at", metavar="T", help="The model at this step; the newest by default."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="safetensors, orbax or hf.")
    ] = FORMATS[0],
    address: ClusterAddress = None,
    as_json: Json = False,
) -> None:
    """Write the model of a run, live or ended, to a safetensors file, for Orbax or transformers.

    The arrays have the task's own leaf paths, and `task.init_from` reads safetensors and orbax
    back. The format hf is a folder that transformers reads, for Gemma models, with tokenizer and
    model card; `task.init_from = "hf:DIR"` reads it back.
    Nothing is overwritten. A step other than 0 and the last one needs the contributions, which a
    run keeps with `durability.keep_contributions = true`.

    Example: archipelago export runs/demo demo.safetensors
    """
    if form not in FORMATS:
        raise UserMistake(f"--format {form}: not known; there are {', '.join(FORMATS)}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the accelerators belong to the islands
    found = runs.reach(name, address)
    if isinstance(found, runs.Live):
        found.prepare()
    from archipelago.lab.checks.audit import lineage_of
    from cluster.launch.export import ExportFormat, export

    done = export(found, out, at, ExportFormat(form), name=name, lineage=lineage_of)
    run = found.run if isinstance(found, runs.Live) else found.name
    if as_json:
        print(json_text({"run": run, "path": done.path, "format": form, "step": done.step}))
    else:
        which = "its model" if at is None else f"its model at step {at}"
        Console(highlight=False, markup=False, soft_wrap=True).print(
            f"{run}: {which} is in {done.path}"
        )
