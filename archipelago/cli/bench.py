"""The command line's `bench`: figures, and the switches of each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.tables import figures_table, rows_table
from archipelago.lab.bench.goals import GOALS, verdict
from cluster.storage.files import json_text
from coordinator.codec import Wire
from coordinator.errors import UserMistake

Overrides = Annotated[
    list[str], typer.Option("--set", metavar="A.B=C", help="Override one value; may be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

bench = typer.Typer(help="Measure; each prints medians with their spread.", no_args_is_help=True)


@bench.command()
def parity(
    steps: Annotated[int, typer.Option(min=1, help="Syncer steps of each run.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Pairs of runs, one seed each.")] = 3,
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody changes it
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
    """Does it learn as well as data-parallel at its best? Held-out loss of both at equal tokens.

    Example: archipelago bench parity --seeds 3 --json
    """
    from archipelago.lab.bench import parity as bench_parity

    preset = "byte-tiny" if quick else "byte-1m"
    steps, seeds = (40, 1) if quick else (steps, seeds)
    talk = Console(stderr=as_json)
    figures = bench_parity.parity(
        preset=preset,
        steps=steps,
        seeds=seeds,
        overrides=overrides,
        lock_step=lock_step,
        every_mode=not quick if every_mode is None else every_mode,
        say=talk.print,
    )
    tell("parity", figures, talk, as_json=as_json)


@bench.command()
def recovery(
    repeats: Annotated[int, typer.Option(min=1, help="Kills of each kind.")] = 3,
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody changes it
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """How long does it take until who was killed is back, and what do the others notice?

    Example: archipelago bench recovery --json
    """
    from archipelago.lab.bench import recovery as bench_recovery

    talk = Console(file=sys.stderr if as_json else sys.stdout)
    figures = bench_recovery.recovery(
        preset="byte-tiny" if quick else "byte-1m",
        repeats=1 if quick else repeats,
        overrides=overrides,
        say=talk.print,
    )
    tell("recovery", figures, talk, as_json=as_json)


@bench.command()
def faults(
    islands: Annotated[int, typer.Option(min=2, help="On this machine.")] = 8,
    every_s: Annotated[float, typer.Option("--kill-every", min=1.0, metavar="S")] = 15.0,
    for_s: Annotated[float, typer.Option("--for", min=30.0, metavar="S", help="A window.")] = 100.0,
    pairs: Annotated[int, typer.Option(min=1, help="Of windows, with kills and without.")] = 6,
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody changes it
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """What is left of the merged tokens per second when something is killed every so often?

    First islands only, then syncer and shard too. The defaults take some 40 minutes.

    Example: archipelago bench faults --islands 8 --kill-every 15 --pairs 6 --for 100 --json
    """
    from archipelago.lab.bench import faults as bench_faults

    talk = Console(file=sys.stderr if as_json else sys.stdout)
    figures = bench_faults.faults(
        preset="byte-tiny",
        islands=2 if quick else islands,
        kill_every_s=5.0 if quick else every_s,
        for_s=12.0 if quick else for_s,
        pairs=1 if quick else pairs,
        overrides=overrides,
        say=talk.print,
    )
    tell("faults", figures, talk, as_json=as_json)


@bench.command()
def merge(
    contributions: Annotated[int, typer.Option("--m", min=1, help="That are merged.")] = 8,
    elements: Annotated[int, typer.Option("--n", min=1, help="Of each of them.")] = 16_000_000,
    wire: Annotated[Wire, typer.Option(help="Measured beside f32.")] = Wire.INT4,
    threads: Annotated[int, typer.Option(min=0, help="0: all that may be used here.")] = 0,
    repeats: Annotated[int, typer.Option(min=1)] = 15,
    pieces: Annotated[int, typer.Option(min=1, help="Of the fragment beside one tensor.")] = 4000,
    quick: Annotated[bool, typer.Option("--quick", help="A rough figure.")] = False,
    as_json: Json = False,
) -> None:
    """How near does a merge come to the speed at which memory can be copied, and read?

    Example: archipelago bench merge --threads 2 --json
    """
    from archipelago.lab.bench import merge as bench_merge

    talk = Console(file=sys.stderr if as_json else sys.stdout)
    if quick:  # pieces of the same size, of fewer elements
        elements, pieces, repeats = 2_000_000, -(-pieces * 2_000_000 // elements), 5
    workload = bench_merge.Workload(
        contributions, elements, wire, threads or bench_merge.threads_here(), pieces
    )
    figures = bench_merge.merge(workload, repeats=repeats, say=talk.print)
    tell("merge", figures, talk, as_json=as_json)


@bench.command("wire")
def wire_(
    steps: Annotated[int, typer.Option(min=1, help="Syncer steps of each run.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each wire, one seed each.")] = 3,
    elements: Annotated[int, typer.Option("--n", min=1, help="Of a message.")] = 4_000_000,
    learners: Annotated[int, typer.Option("--m", min=2, help="In the ring.")] = 8,
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody changes it
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """What does each encoding cost, in bytes, in time and in what is learned?

    Example: archipelago bench wire --set sync.every=24 --json
    """
    from archipelago.lab.bench import wire as bench_wire

    talk = Console(file=sys.stderr if as_json else sys.stdout)
    steps, seeds = (20, 1) if quick else (steps, seeds)
    figures = bench_wire.wire(
        preset="byte-tiny" if quick else "byte-1m",
        steps=steps,
        seeds=seeds,
        elements=elements,
        repeats=3 if quick else 15,
        learners=learners,
        overrides=overrides,
        say=talk.print,
    )
    tell("wire", figures, talk, as_json=as_json)


@bench.command("scale")
def scale_(
    learners: Annotated[
        str, typer.Option(metavar="M,N", help="How many; each a row.")
    ] = "8,64,256",
    for_s: Annotated[float, typer.Option("--for", min=1.0, metavar="S", help="Each rate.")] = 10.0,
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody changes it
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """What does one syncer cost, and how fast does it answer, by number of learners?

    Example: archipelago bench scale --learners 8,64,256 --json
    """
    from archipelago.lab.bench import scale as bench_scale

    talk = Console(file=sys.stderr if as_json else sys.stdout, soft_wrap=True)
    figures = bench_scale.scale(
        learners=[8] if quick else _numbers(learners),
        for_s=3.0 if quick else for_s,
        rates=bench_scale.QUICK if quick else bench_scale.LADDER,
        overrides=overrides,
        say=talk.print,
    )
    tell("scale", figures, talk, as_json=as_json)


def _numbers(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isdecimal() and int(number) for number in numbers):
        raise UserMistake(f"--learners {text!r}: that is not a list of numbers, such as 8,64,256")
    return [int(number) for number in numbers]


@bench.command()
def overhead(
    islands: Annotated[int, typer.Option(min=1, help="One CPU each.")] = 2,
    for_s: Annotated[float, typer.Option("--for", min=1.0, metavar="S", help="A window.")] = 20.0,
    pairs: Annotated[int, typer.Option(min=1, help="Of windows, with and without.")] = 6,
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody changes it
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """What does the system cost islands that train anyway, in wall time and in CPU seconds?

    Example: archipelago bench overhead --pairs 6 --for 20 --json
    """
    from archipelago.lab.bench import overhead as bench_overhead

    talk = Console(file=sys.stderr if as_json else sys.stdout, soft_wrap=True)
    figures = bench_overhead.overhead(
        preset="byte-tiny" if quick else "byte-1m",
        islands=islands,
        pairs=1 if quick else pairs,
        for_s=3.0 if quick else for_s,
        overrides=overrides,
        say=talk.print,
    )
    tell("overhead", figures, talk, as_json=as_json)


@bench.command("large")
def large_(
    repeats: Annotated[int, typer.Option(min=1, help="Kills at each length of the tape.")] = 6,
    only: Annotated[str | None, typer.Option(help="One part: tape, or joins.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """What does a killed syncer cost a run of a million steps, and 16 learners who join a model of
    a gigabyte over 200 Mbit/s?

    Before its first measurement it plays a tape of 100,000 steps, which takes half an hour and
    0.5 GB in ~/.cache/archipelago/bench; later ones find it there. The link is one of two network
    namespaces, which needs root; else the learners are paced.

    Example: archipelago bench large --json
    """
    from archipelago.lab.bench import joins as bench_joins
    from archipelago.lab.bench import large as bench_large

    talk = Console(file=sys.stderr if as_json else sys.stdout, soft_wrap=True)
    figures = bench_large.large(
        lengths=bench_large.QUICK if quick else bench_large.LONG,
        repeats=1 if quick else repeats,
        home=bench_large.CACHE,
        plan=bench_joins.QUICK if quick else bench_joins.LARGE,
        say=talk.print,
        parts=bench_large.parts_of(only),
    )
    tell("large", figures, talk, as_json=as_json)


@bench.command()
def calibrate(
    for_s: Annotated[float, typer.Option("--for", min=10.0, metavar="S", help="A window.")] = 60.0,
    step_s: Annotated[float, typer.Option(min=0.05, help="Of an island's step.")] = 0.5,
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody changes it
    quick: Annotated[bool, typer.Option("--quick", help="A toy, only to see it work.")] = False,
    as_json: Json = False,
) -> None:
    """Does the simulator say of this machine what real runs do? Three plans of faults, both ways.

    Example: archipelago bench calibrate --for 60 --json
    """
    from archipelago.lab.bench import calibrate as bench_calibrate

    talk = Console(file=sys.stderr if as_json else sys.stdout, soft_wrap=True)
    figures = bench_calibrate.calibrate(
        preset="byte-tiny",
        step_s=0.25 if quick else step_s,
        for_s=15.0 if quick else for_s,
        overrides=overrides,
        say=talk.print,
    )
    tell("calibrate", figures, talk, as_json=as_json)


@bench.command("accelerator")
def accelerator_(
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep accelerator.json there, rewritten after each part."),
    ] = None,
    budget_s: Annotated[
        float | None,
        typer.Option("--budget", min=0.0, metavar="S", help="Seconds for everything; 520."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, on the CPU.")] = False,
    as_json: Json = False,
) -> None:
    """Measure one accelerator: steps with our hooks and without, kernels, memory, a small study.

    Without Ray: python -m archipelago.lab.bench.accelerator --json

    Example: archipelago bench accelerator --out runs/accelerator --json
    """
    from archipelago.lab.bench import accelerator as bench_accelerator

    talk = Console(stderr=True, soft_wrap=True)
    figures = bench_accelerator.accelerator(
        quick=quick, out=out, budget_s=budget_s, say=lambda line: talk.print(line, markup=False)
    )
    if as_json:
        print(json_text(figures))
        return
    talk = Console(soft_wrap=True)
    shown = {key: each for key, each in figures.items() if not isinstance(each, dict | list)}
    talk.print(figures_table(shown))
    talk.print(rows_table(bench_accelerator.plain_rows(figures)))


def tell(bench: str, figures: Mapping[str, object], talk: Console, *, as_json: bool) -> None:
    if as_json:
        print(json_text(figures))
        return
    talk.print(figures_table({k: v for k, v in figures.items() if k != "rows"}))
    for name, goal in GOALS.get(bench, {}).items():
        talk.print(f"{name}: {goal}: {verdict(goal, name, figures)}")
    rows = figures.get("rows")
    if isinstance(rows, list) and rows:
        talk.print(rows_table(rows))
