"""The commands `bench parity` and `bench wire`: the quality of learning."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.bench_output import tell
from archipelago.cli.options import Json, Overrides


def parity(
    steps: Annotated[int, typer.Option(min=1, help="Syncer steps of each run.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Pairs of runs, one seed each.")] = 3,
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    lock_step: Annotated[
        bool, typer.Option("--lock-step", help="In virtual time, without Ray, and every mode.")
    ] = False,
    every_mode: Annotated[
        bool | None,
        typer.Option(
            "--every-mode/--decoupled-only",
            help="DiLoCo and Streaming DiLoCo, too; so unless --quick is given.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the held-out loss with that of data-parallel at its best, at equal tokens.

    Example: archipelago bench parity --seeds 3 --json
    """
    from archipelago.lab.bench import parity as bench_parity

    preset = "byte-tiny" if quick else "byte-1m"
    steps, seeds = (40, 1) if quick else (steps, seeds)
    console = Console(stderr=as_json)
    figures = bench_parity.parity(
        preset=preset,
        steps=steps,
        seeds=seeds,
        overrides=overrides,
        lock_step=lock_step,
        every_mode=not quick if every_mode is None else every_mode,
        say=console.print,
    )
    tell("parity", figures, console, as_json=as_json)


def wire(
    steps: Annotated[int, typer.Option(min=1, help="Syncer steps of each run.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each wire, one seed each.")] = 3,
    elements: Annotated[int, typer.Option("--n", min=1, help="Elements of a message.")] = 4_000_000,
    learners: Annotated[int, typer.Option("--m", min=2, help="In the ring.")] = 8,
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the bytes, the time and the held-out loss of each encoding.

    Example: archipelago bench wire --set sync.every=24 --json
    """
    from archipelago.lab.bench import wire as bench_wire

    console = Console(file=sys.stderr if as_json else sys.stdout)
    steps, seeds = (20, 1) if quick else (steps, seeds)
    figures = bench_wire.wire(
        preset="byte-tiny" if quick else "byte-1m",
        steps=steps,
        seeds=seeds,
        elements=elements,
        repeats=3 if quick else 15,
        learners=learners,
        overrides=overrides,
        say=console.print,
    )
    tell("wire", figures, console, as_json=as_json)
