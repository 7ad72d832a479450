"""The commands that steer a live run: scale, drain, chaos, save, stop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.formatting import duration
from archipelago.cli.options import (
    ClusterAddress,
    Json,
    NamedRun,
    RunName,
    live_run,
    on_this_machine,
)
from cluster.storage.files import json_text
from coordinator.errors import UserMistake
from coordinator.protocol import Island


def scale(
    name: NamedRun,
    counts: Annotated[list[str], typer.Argument(metavar="GROUP=N ...", help="Islands to have.")],
    address: ClusterAddress = None,
    as_json: Json = False,
) -> None:
    """Set the number of islands of groups in a live run; leaving islands hand in their work first.

    Example: archipelago scale runs/demo local=6
    """
    wanted = _counts(counts)
    live = live_run(name, address)
    from cluster.launch.client import scale

    scale(live, wanted)
    if as_json:
        print(json_text({"run": live.run, "islands": wanted}))
        return
    sizes = ", ".join(f"{group} = {count}" for group, count in wanted.items())
    Console().print(f"{live.run}: {sizes}; `archipelago status` shows how far it is")


def _counts(texts: Sequence[str]) -> dict[str, int]:
    parts = {text: text.partition("=") for text in texts}
    if wrong := [text for text, (group, _, n) in parts.items() if not group or not n.isdecimal()]:
        raise UserMistake(
            "\n".join(f"{text!r}: that is not GROUP=N, such as local=4" for text in wrong)
        )
    return {group: int(count) for group, _, count in parts.values()}


def drain(
    name: NamedRun,
    island: Annotated[str, typer.Argument(metavar="ISLAND", help="Its name, such as local-0.")],
    address: ClusterAddress = None,
    as_json: Json = False,
) -> None:
    """Let one island hand in its work and leave; its group then has one island less.

    Example: archipelago drain runs/demo local-3
    """
    live = live_run(name, address)
    from cluster.launch.client import drain

    drain(live, Island(island))
    if as_json:
        print(json_text({"run": live.run, "island": island}))
    else:
        Console().print(f"{live.run}: {island} hands in its work and leaves")


def chaos(
    name: NamedRun,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="PLAN.toml", help="[[faults]] with after_s, kind, island."),
    ] = None,
    every_s: Annotated[
        float | None,
        typer.Option(
            "--kill-every",
            min=0.1,
            metavar="S",
            help="Break a random island every S seconds; see --kind.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the choice of victims.")] = 0,
    for_s: Annotated[
        float, typer.Option("--for", metavar="S", help="For how many seconds.")
    ] = 60.0,
    kinds: Annotated[
        list[str], typer.Option("--kind", help="Instead of kill: stop, slow, cut, nan, drain ...")
    ] = ["kill"],  # noqa: B006 - typer reads it; it never changes
    address: ClusterAddress = None,
    as_json: Json = False,
) -> None:
    """Inject faults into a live run: islands, syncer, shard, evaluator, fleet or a disk.

    Example: archipelago chaos runs/demo --kill-every 15 --seed 7 --for 120
    """
    from cluster.config.fault_kinds import FaultKind

    known_kinds = [*FaultKind]
    wrong = [
        f"--kind {kind}: not known; there are {', '.join(known_kinds)}"
        for kind in kinds
        if kind not in known_kinds
    ]
    if (plan is None) == (every_s is None):
        wrong.append("give either --plan PLAN.toml or --kill-every S: what to break, and when")
    if wrong:
        raise UserMistake("\n".join(wrong))
    live = live_run(name, address)
    from cluster.launch import chaos as breaking

    attacks = (
        breaking.at_random(seed, every_s or for_s, for_s, kinds)
        if plan is None
        else breaking.read_plan(plan)
    )
    console = Console(file=sys.stderr if as_json else sys.stdout, highlight=False, markup=False)
    faults: list[breaking.Struck] = []
    for each in breaking.strike(live, attacks, seed):
        faults.append(each)
        because = f": refused, {each.refused}" if each.refused else ""
        console.print(f"{duration(each.at_s)}  {each.kind} {each.island}{because}")
    if as_json:
        print(json_text({"run": live.run, "faults": [each._asdict() for each in faults]}))


def save(
    name: NamedRun,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A folder, or a name that ends with .safetensors.",
            callback=on_this_machine,
        ),
    ],
    address: ClusterAddress = None,
    as_json: Json = False,
) -> None:
    """Write the current model of a live run to a path of its fleet's machine.

    A run waits at its end if it can write the model neither to its directory nor to its depot. It
    ends once this command has saved the model.

    Example: archipelago save runs/demo /mnt/other/demo.safetensors
    """
    target = path.expanduser().absolute()
    live = live_run(name, address)
    from cluster.launch.client import save

    saved_path = save(live, target)
    if as_json:
        print(json_text({"run": live.run, "path": saved_path}))
    else:
        Console().print(f"{live.run}: its model is in {saved_path}")


def stop(name: RunName = None, address: ClusterAddress = None, as_json: Json = False) -> None:
    """Stop a run gracefully: all islands hand in their work, and it ends with its summary.

    Example: archipelago stop runs/demo
    """
    live = live_run(name, address)
    from cluster.launch.client import stop

    stop(live)
    if as_json:
        print(json_text({"run": live.run}))
        return
    Console().print(f"{live.run} was asked to stop; its terminal, or its job, prints the summary")
