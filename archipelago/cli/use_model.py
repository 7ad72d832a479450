"""The commands `archipelago sample` and `archipelago eval`, which use the model of a run."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from archipelago.cli.options import ClusterAddress, Json, NamedRun
from cluster.storage.files import json_text

COLUMNS = ("files", "tokens", "nats/token", "perplexity", "bits/byte")
AtStep = Annotated[
    int | None,
    typer.Option("--at", metavar="T", help="The model at this step; the newest by default."),
]


def sample(
    name: NamedRun,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to continue.")],
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=1, help="Tokens to generate.")
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option("--temperature", metavar="X", min=0.0, help="0 takes the best token always."),
    ] = 0.8,
    top_k: Annotated[
        int, typer.Option("--top-k", metavar="K", min=0, help="Choose among the best K; 0: all.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the choices.")] = 0,
    at: AtStep = None,
    address: ClusterAddress = None,
    as_json: Json = False,
) -> None:
    """Continue a text with the model of a run, live or ended.

    The text is printed while it is generated. The task must be a model of text, as the presets are.

    Example: archipelago sample runs/demo "def main(" --tokens 120
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the accelerators belong to the islands
    from archipelago.trained_model import trained_model
    from islands.text_model import Sampling

    model = trained_model(name, at, address)
    began_s, pieces = time.monotonic(), list[str]()
    for piece in model.continued(prompt, tokens, Sampling(temperature, top_k, seed)):
        if not pieces and not as_json:
            sys.stdout.write(prompt)
        pieces.append(piece)
        if not as_json:
            sys.stdout.write(piece)
            sys.stdout.flush()
    if as_json:
        found = {"run": model.run, "step": at, "prompt": prompt, "text": "".join(pieces)}
        found |= {"tokens": tokens, "seconds": round(time.monotonic() - began_s, 3)}
        print(json_text(found))
    else:
        sys.stdout.write("\n")


def evaluate(
    name: NamedRun,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="SOURCE", help="Another source, of which the held-out share is read."
        ),
    ] = None,
    tasks: Annotated[
        list[Path] | None,
        typer.Option(
            "--tasks",
            metavar="FILE",
            help="Multiple-choice questions in JSON lines; may be given several times.",
        ),
    ] = None,
    windows: Annotated[
        int,
        typer.Option(
            "--windows", metavar="N", min=0, help="Windows of each type of files; 0 for no types."
        ),
    ] = 256,
    at: AtStep = None,
    address: ClusterAddress = None,
    as_json: Json = False,
) -> None:
    """Compute the held-out loss of a run's model, on its own data or on another source.

    Without --data, the loss is that of the run's summary: over the same windows. The losses by
    type are those of the first windows of the held-out files with that suffix. --data is refused
    if the task of the run has data of its own, and does not read `data.source`. --tasks adds the
    share of right answers to questions, which `archipelago data questions` makes.

    Example: archipelago eval runs/demo --tasks definitions.jsonl --tasks cloze.jsonl
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the accelerators belong to the islands
    from archipelago.trained_model import READ_BY, trained_model

    found = trained_model(name, at, address).judged(data, windows, tasks or ())
    if as_json:
        print(json_text(asdict(found)))
        return
    out = Console(highlight=False, markup=False, soft_wrap=True)
    source = f"data {found.source}" if found.source.startswith(READ_BY) else found.source
    out.print(f"{found.run} on {source}: {found.heldout_loss:.4f} nats per token")
    out.print(f"perplexity {found.perplexity:.2f}")
    if found.bits_per_byte is not None:
        out.print(f"{found.bits_per_byte:.4f} bits per byte")
    else:
        out.print(f"bits per byte are not known: {found.bits_per_byte_missing}")
    for key, value in found.metrics.items():
        out.print(f"{key} {value:.4g}")
    if found.types:
        table = Table("type", *(Column(name, justify="right") for name in COLUMNS), box=None)
        for each in found.types:
            figures = (f"{each.heldout_loss:.4f}", f"{each.perplexity:.2f}")
            bits = f"{each.bits_per_byte:.4f}"
            table.add_row(
                each.type or "(none)", str(each.files), f"{each.tokens:,}", *figures, bits
            )
        out.print(table)
    for each in found.tasks:
        right = f"{each.accuracy:.1%} ± {each.accuracy_stderr:.1%}"
        norm = f"{each.accuracy_norm:.1%} ± {each.accuracy_norm_stderr:.1%}"
        out.print(
            f"{each.task}: {right} right ({norm} by length) of {each.questions:,} questions; "
            f"chance {each.chance:.1%}"
        )
