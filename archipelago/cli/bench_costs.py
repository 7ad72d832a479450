"""The commands `bench merge`, `scale`, `overhead`, `large` and `accelerator`: costs of parts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.bench_output import tell
from archipelago.cli.options import Json, Overrides, on_this_machine
from archipelago.cli.tables import figures_table, rows_table
from cluster.storage.files import json_text
from coordinator.codec import Wire
from coordinator.errors import UserMistake


def merge(
    contributions: Annotated[int, typer.Option("--m", min=1, help="That are merged.")] = 8,
    elements: Annotated[
        int, typer.Option("--n", min=1, help="Elements of each contribution.")
    ] = 16_000_000,
    wire: Annotated[Wire, typer.Option(help="Measured beside f32.")] = Wire.INT4,
    threads: Annotated[int, typer.Option(min=0, help="0: all that may be used here.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Samples of each figure.")] = 15,
    pieces: Annotated[int, typer.Option(min=1, help="Pieces of the fragment.")] = 4000,
    quick: Annotated[bool, typer.Option("--quick", help="A rough figure.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the throughput of a merge, against that of copying and of reading memory.

    Example: archipelago bench merge --threads 2 --json
    """
    from archipelago.lab.bench import merge as bench_merge
    from archipelago.lab.bench.merge_workload import Workload, threads_here

    console = Console(file=sys.stderr if as_json else sys.stdout)
    if quick:  # fewer elements, in pieces of the same size
        elements, pieces, repeats = 2_000_000, -(-pieces * 2_000_000 // elements), 5
    workload = Workload(contributions, elements, wire, threads or threads_here(), pieces)
    figures = bench_merge.merge(workload, repeats=repeats, say=console.print)
    tell("merge", figures, console, as_json=as_json)


def scale(
    learners: Annotated[
        str, typer.Option(metavar="M,N", help="How many; each a row.")
    ] = "8,64,256",
    for_s: Annotated[float, typer.Option("--for", min=1.0, metavar="S", help="Each rate.")] = 10.0,
    late_ms: Annotated[
        float, typer.Option("--late-ms", min=1.0, metavar="MS", help="Limit of the p99.")
    ] = 50.0,
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the cost and the latency of one syncer, by the number of learners.

    The rate of reports rises until answers are late. An actor that does nothing is measured in the
    same way first (`empty_...`): that is the limit which Ray's calls set.

    Example: archipelago bench scale --learners 8,64,256 --json
    """
    from archipelago.lab.bench import scale as bench_scale

    console = Console(file=sys.stderr if as_json else sys.stdout, soft_wrap=True)
    figures = bench_scale.scale(
        learners=[8] if quick else _numbers(learners),
        for_s=3.0 if quick else for_s,
        rates=bench_scale.QUICK if quick else bench_scale.LADDER,
        late_ms=late_ms,
        overrides=overrides,
        say=console.print,
    )
    tell("scale", figures, console, as_json=as_json)


def _numbers(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isdecimal() and int(number) for number in numbers):
        raise UserMistake(f"--learners {text!r}: that is not a list of numbers, such as 8,64,256")
    return [int(number) for number in numbers]


def overhead(
    islands: Annotated[int, typer.Option(min=1, help="One CPU each.")] = 2,
    for_s: Annotated[float, typer.Option("--for", min=1.0, metavar="S", help="A window.")] = 20.0,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of windows.")] = 6,
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the overhead of the system over plain training, in wall time and CPU seconds.

    Example: archipelago bench overhead --pairs 6 --for 20 --json
    """
    from archipelago.lab.bench import overhead as bench_overhead

    console = Console(file=sys.stderr if as_json else sys.stdout, soft_wrap=True)
    figures = bench_overhead.overhead(
        preset="byte-tiny" if quick else "byte-1m",
        islands=islands,
        pairs=1 if quick else pairs,
        for_s=3.0 if quick else for_s,
        overrides=overrides,
        say=console.print,
    )
    tell("overhead", figures, console, as_json=as_json)


def large(
    repeats: Annotated[int, typer.Option(min=1, help="Kills at each length of the tape.")] = 6,
    only: Annotated[str | None, typer.Option(help="One part: tape, or joins.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the recovery of a long run, and simultaneous joins to a large model.

    The syncer is killed after a million steps, and 16 learners join a model of a gigabyte over
    200 Mbit/s. The first measurement plays a tape of 100,000 steps. This takes half an hour and
    0.5 GB in ~/.cache/archipelago/bench, where later measurements find it. The link connects two
    network namespaces, which needs root; without root the learners are paced.

    Example: archipelago bench large --json
    """
    from archipelago.lab.bench import joins as bench_joins
    from archipelago.lab.bench import large as bench_large

    console = Console(file=sys.stderr if as_json else sys.stdout, soft_wrap=True)
    figures = bench_large.large(
        lengths=bench_large.QUICK if quick else bench_large.LONG,
        repeats=1 if quick else repeats,
        home=bench_large.CACHE,
        plan=bench_joins.QUICK if quick else bench_joins.LARGE,
        say=console.print,
        parts=bench_large.parts_of(only),
    )
    tell("large", figures, console, as_json=as_json)


def accelerator(
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep accelerator.json there, rewritten after each part.",
            callback=on_this_machine,
        ),
    ] = None,
    budget_s: Annotated[
        float | None,
        typer.Option("--budget", min=0.0, metavar="S", help="Seconds for everything; 520."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, on the CPU.")] = False,
    as_json: Json = False,
) -> None:
    """Measure an accelerator: steps with our hooks and without, kernels, memory, a small study.

    To run it without Ray: python -m archipelago.lab.bench.accelerator --json

    Example: archipelago bench accelerator --out runs/accelerator --json
    """
    from archipelago.lab.bench import accelerator as bench_accelerator

    console = Console(stderr=True, soft_wrap=True)
    figures = bench_accelerator.accelerator(
        quick=quick, out=out, budget_s=budget_s, say=lambda line: console.print(line, markup=False)
    )
    if as_json:
        print(json_text(figures))
        return
    console = Console(soft_wrap=True)
    scalars = {key: each for key, each in figures.items() if not isinstance(each, dict | list)}
    console.print(figures_table(scalars))
    console.print(rows_table(bench_accelerator.plain_rows(figures)))
