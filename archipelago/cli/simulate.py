"""The command `archipelago simulate`: a run in virtual time, many random runs, or a cluster."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli import planning
from archipelago.cli.options import FAILED, Json, Overrides, on_this_machine
from archipelago.cli.tables import figures_table
from cluster.config.machines import is_cluster
from cluster.storage.files import json_text
from coordinator.errors import UserMistake


def simulate(
    config_path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.toml]",
            help="A run to play, with its fault plan; or a cluster of chips.",
        ),
    ] = None,
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    schedules: Annotated[
        int | None,
        typer.Option("--fuzz", min=1, metavar="N", help="Number of random schedules."),
    ] = None,
    for_s: Annotated[
        float | None,
        typer.Option("--for", min=0, metavar="SECONDS", help="Random ones for so long."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="SEED/NUMBER", help="One of the random ones once more."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Seed of all random choices; 0 by default, a new one with --for.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each core.")] = 0,
    table1: Annotated[
        bool, typer.Option("--table1", help="Goodput of up to 2.4M chips, beside the paper's.")
    ] = False,
    bandwidth: Annotated[
        bool, typer.Option("--bandwidth", help="Which link each method needs to keep computing.")
    ] = False,
    pictures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Draw goodput, links, a failure and a plan as SVG.",
            callback=on_this_machine,
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Play longer traces of table 1 or a cluster file (minutes)."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Simulate a run in virtual time, many runs with random faults, or clusters of chips.

    A run, and each random run, checks every invariant after every event. Clusters may have millions
    of chips.

    Example: archipelago simulate examples/demo.toml --set sync.quorum=2
    """
    of_chips = config_path is not None and is_cluster(config_path)
    if full and not (table1 or of_chips):
        raise UserMistake("--full sets the length: give --table1 or a cluster file too")
    if pictures is not None:
        if table1 or bandwidth or not (config_path is None or of_chips):
            raise UserMistake("--pictures takes a cluster file and --seed only")
        planning.draw(pictures, config_path, seed or 0, as_json=as_json)
        return
    if table1 or bandwidth:
        if config_path is not None or overrides or not (schedules is for_s is schedule is None):
            raise UserMistake("--table1 and --bandwidth take --seed, --full and --json only")
        if table1 and bandwidth:
            raise UserMistake("give either --table1 or --bandwidth")
        if table1:
            planning.table1(seed or 0, full=full, as_json=as_json)
        else:
            planning.bandwidth(seed or 0, as_json=as_json)
        return
    if config_path is not None and of_chips:
        if overrides or not (schedules is for_s is schedule is None):
            raise UserMistake("a cluster file takes --seed, --full and --json only")
        planning.simulated(config_path, seed or 0, full=full, as_json=as_json)
        return
    if config_path is None:
        if overrides:
            raise UserMistake("--set changes a configuration; give it too: simulate CONFIG.toml")
        result = _fuzz(schedules, for_s, schedule, seed, jobs or os.cpu_count() or 1)
    else:
        if not (schedules is for_s is schedule is None):
            raise UserMistake("give either CONFIG.toml or --fuzz N")
        from archipelago.lab.simulation import from_config
        from cluster.config.load import load

        result = asdict(from_config.simulate(load(config_path, overrides), seed or 0))
    if as_json:
        print(json_text(result))
    else:
        Console().print(figures_table(result))
    if result["violations"]:
        raise typer.Exit(FAILED)


def _fuzz(
    schedules: int | None, for_s: float | None, schedule: str | None, seed: int | None, jobs: int
) -> dict[str, object]:
    """Run random schedules, and print the seed and each failure at once on standard error.

    A failure is printed with the command that repeats it.
    """
    from archipelago.lab.simulation import fuzz
    from archipelago.lab.simulation.fuzz_failures import FuzzFailure, keep

    def found(failure: FuzzFailure) -> None:
        typer.echo(f"{failure.seed}: {failure.words}\n{keep(failure)}", err=True)

    if schedule is not None:
        if not (schedules is for_s is seed is None):
            raise UserMistake("--schedule SEED/NUMBER is one schedule: it needs nothing else")
        result = fuzz.repeated(schedule)
        for failure in result.failures:
            found(failure)
    else:
        if seed is None:
            seed = 0 if for_s is None else fuzz.new_seed()
        typer.echo(f"seed {seed}", err=True)
        if schedules is None and for_s is None:
            schedules = 100
        for_s = math.inf if for_s is None else for_s
        result = fuzz.fuzz(schedules, seed, jobs=jobs, for_s=for_s, found=found)
    return asdict(result)
