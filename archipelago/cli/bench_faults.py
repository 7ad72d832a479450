"""The commands `bench recovery`, `faults` and `calibrate`: runs with injected faults."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.bench_output import tell
from archipelago.cli.options import Json, Overrides, on_this_machine
from coordinator.errors import UserMistake

LEAST_S = 30.0
"""The shortest window of `bench faults` without --levels, in seconds."""


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
    levels: Annotated[
        str | None,
        typer.Option(
            metavar="L,L,...",
            help="Kills per island and minute: compare three modes of training at each level.",
        ),
    ] = None,
    islands: Annotated[
        int | None, typer.Option(min=2, help="On this machine; 8, or 4 with --levels.")
    ] = None,
    every_s: Annotated[
        float | None,
        typer.Option("--kill-every", min=1.0, metavar="S", help="Seconds between two kills; 15."),
    ] = None,
    for_s: Annotated[
        float | None,
        typer.Option("--for", min=10.0, metavar="S", help="A window; 100, or 30 with --levels."),
    ] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="Pairs of windows; 6.")] = None,
    step_s: Annotated[
        float | None,
        typer.Option("--step", min=0.05, metavar="S", help="A step, with --levels; 0.5."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the kills, with --levels; 0.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --levels: write JSON, CSV and pictures there.",
            callback=on_this_machine,
        ),
    ] = None,
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """Measure how many merged tokens per second remain under regular kills.

    The kills hit islands first, and then the syncer and the shard, too. The defaults take about
    40 minutes. With --levels: goodput of decoupled, elastic and plain data-parallel training at
    each level of failure, under the same kills, beside the simulated goodput; 10 to 15 minutes.

    Example: archipelago bench faults --levels 0,1,2,4 --out pictures
    """
    console = Console(file=sys.stderr if as_json else sys.stdout, soft_wrap=True)
    if levels is not None:
        _refuse("with --levels", {"--kill-every": every_s, "--pairs": pairs})
        _by_level(
            levels, islands, for_s, step_s, seed, out, overrides, console, quick, as_json=as_json
        )
        return
    _refuse("without --levels", {"--step": step_s, "--seed": seed, "--out": out})
    if for_s is not None and for_s < LEAST_S:
        raise UserMistake(f"--for {for_s:g}: a window without --levels needs {LEAST_S:g} s or more")
    from archipelago.lab.bench import faults as bench_faults

    figures = bench_faults.faults(
        preset="byte-tiny",
        islands=2 if quick else islands or 8,
        kill_every_s=5.0 if quick else every_s or 15.0,
        for_s=12.0 if quick else for_s or 100.0,
        pairs=1 if quick else pairs or 6,
        overrides=overrides,
        say=console.print,
    )
    tell("faults", figures, console, as_json=as_json)


def _refuse(when: str, options: Mapping[str, object]) -> None:
    """Refuse options that have no meaning here. Errors: `UserMistake` with all of them at once."""
    if given := [name for name, value in options.items() if value is not None]:
        raise UserMistake(f"{', '.join(given)}: no meaning {when}; leave it out")


def _by_level(
    levels: str,
    islands: int | None,
    for_s: float | None,
    step_s: float | None,
    seed: int | None,
    out: Path | None,
    overrides: Sequence[str],
    console: Console,
    quick: bool,
    *,
    as_json: bool,
) -> None:
    """Carry out `bench faults --levels`."""
    from archipelago.lab.bench import fault_levels, fault_levels_plan, fault_levels_written

    settings = fault_levels.LevelSettings(
        levels=fault_levels_plan.parse_levels(levels),
        islands=islands or (2 if quick else 4),
        for_s=for_s or (10.0 if quick else 30.0),
        step_s=step_s or 0.5,
        seed=seed or 0,
        kills=1 if quick else 2,
    )
    if out is not None:
        fault_levels_written.check(out)
    figures = fault_levels.fault_levels(settings, overrides, console.print)
    if out is not None:
        written = fault_levels_written.write(out, figures)
        console.print("\n".join(map(str, written)))
    tell("faults --levels", figures, console, as_json=as_json)


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
