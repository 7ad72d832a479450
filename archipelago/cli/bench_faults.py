"""The commands `bench recovery`, `faults` and `calibrate`: runs with injected faults."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.bench_output import tell
from archipelago.cli.options import Json, Overrides


def recovery(
    repeats: Annotated[int, typer.Option(min=1, help="Kills of each kind.")] = 3,
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """Measure how long killed processes take to return, and how long merges pause meanwhile.

    Example: archipelago bench recovery --json
    """
    from archipelago.lab.bench import recovery as bench_recovery

    console = Console(file=sys.stderr if as_json else sys.stdout)
    figures = bench_recovery.recovery(
        preset="byte-tiny" if quick else "byte-1m",
        repeats=1 if quick else repeats,
        overrides=overrides,
        say=console.print,
    )
    tell("recovery", figures, console, as_json=as_json)


def faults(
    islands: Annotated[int, typer.Option(min=2, help="On this machine.")] = 8,
    every_s: Annotated[
        float, typer.Option("--kill-every", min=1.0, metavar="S", help="Seconds between two kills.")
    ] = 15.0,
    for_s: Annotated[float, typer.Option("--for", min=30.0, metavar="S", help="A window.")] = 100.0,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of windows.")] = 6,
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """Measure how many merged tokens per second remain under regular kills.

    The kills hit islands first, and then the syncer and the shard, too. The defaults take about
    40 minutes.

    Example: archipelago bench faults --islands 8 --kill-every 15 --pairs 6 --for 100 --json
    """
    from archipelago.lab.bench import faults as bench_faults

    console = Console(file=sys.stderr if as_json else sys.stdout)
    figures = bench_faults.faults(
        preset="byte-tiny",
        islands=2 if quick else islands,
        kill_every_s=5.0 if quick else every_s,
        for_s=12.0 if quick else for_s,
        pairs=1 if quick else pairs,
        overrides=overrides,
        say=console.print,
    )
    tell("faults", figures, console, as_json=as_json)


def calibrate(
    for_s: Annotated[float, typer.Option("--for", min=10.0, metavar="S", help="A window.")] = 60.0,
    step_s: Annotated[float, typer.Option(min=0.05, help="Seconds of an island's step.")] = 0.5,
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """Compare the simulator with real runs on this machine, for three fault plans.

    Example: archipelago bench calibrate --for 60 --json
    """
    from archipelago.lab.bench import calibrate as bench_calibrate

    console = Console(file=sys.stderr if as_json else sys.stdout, soft_wrap=True)
    figures = bench_calibrate.calibrate(
        preset="byte-tiny",
        step_s=0.25 if quick else step_s,
        for_s=15.0 if quick else for_s,
        overrides=overrides,
        say=console.print,
    )
    tell("calibrate", figures, console, as_json=as_json)
