"""The command `archipelago bench wan`: training over thin links with latency."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console

from archipelago.cli.bench_output import tell
from archipelago.cli.options import Json
from coordinator.errors import ArchipelagoError, RunFailed, UserMistake

CUT_S = 60.0
"""The usual cut in seconds: Ray does not give up the node yet."""
LONG_CUT_S = 240.0
"""The long cut in seconds: Ray has ended the node by then."""
BULK_S = 600.0
"""Seconds of objects at the full rate of all links, with `--full`."""


def wan(
    full: Annotated[
        bool, typer.Option("--full", help="Also other links, a slow region and bulk; 70 minutes.")
    ] = False,
    quorum: Annotated[int, typer.Option(min=1, max=4, help="K of decoupled training.")] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="A small model; four minutes.")] = False,
    cut: Annotated[
        float | None, typer.Option(min=1.0, metavar="SECONDS", help="Only a run with such a cut.")
    ] = None,
    window: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="With --cut: compare as long before it."),
    ] = 0.0,
    regions: Annotated[int, typer.Option(min=3, help="How many, of the run with a cut.")] = 4,
    count_bytes: Annotated[
        bool, typer.Option("--bytes", help="Only compare an audit with the interfaces; 6 minutes.")
    ] = False,
    bulk: Annotated[
        float | None,
        typer.Option(min=10.0, metavar="SECONDS", help="Only objects at the links' full rate."),
    ] = None,
    spread: Annotated[
        bool,
        typer.Option("--spread", help="Only all shards in one region, and one in each; 5 minutes."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure merged tokens per second over four regions with thin, long links; needs root.

    The point stands for 12 billion parameters, 2 Gbit/s and steps of 5 s: a link of 0.2 Gbit/s and
    80 ms, 48 million parameters, steps of 0.2 s. A step is idle time. With a quorum below 4, merges
    begin while regions are still joining. In a further run of a small model the link of a region is
    cut for a minute. `--bytes` compares the bytes that `archipelago audit` counts with those that
    the network interfaces count. `--bulk` counts the nodes that Ray gives up while every link
    carries objects at its full rate. `--spread` compares all shards in one region with a shard in
    each, at half of the bandwidth, which the link of one region cannot carry. `--cut` with
    `--spread`: the region that is cut off has one of the shards. `--window` compares the tokens
    that are merged in so many seconds from the cut on with those of as many before it.

    Example: archipelago bench wan --json
    """
    from archipelago.lab.bench import wan as bench_wan
    from archipelago.lab.bench import wan_bulk, wan_bytes, wan_cut
    from archipelago.lab.bench.wan_cut import CutPlan
    from archipelago.lab.bench.wan_points import MAIN, QUICK

    options = {
        "--cut": cut is not None,
        "--bytes": count_bytes,
        "--bulk": bulk is not None,
        "--spread": spread,
    }
    alone = [name for name, given in options.items() if given]
    if alone == ["--cut", "--spread"]:
        alone = ["--cut"]
    if window and cut is None:
        raise UserMistake("--window is compared with a cut: give --cut SECONDS, too")
    if alone and (full or quick or len(alone) > 1):
        raise UserMistake(f"{alone[0]} is a run of its own: leave out the other options")
    console, failed = Console(file=sys.stderr if as_json else sys.stdout), list[str]()
    main, small = (replace(each, quorum=quorum) for each in (MAIN, QUICK))
    if count_bytes:
        figures = wan_bytes.bytes_agree(wan_bytes.BytesPlan(), console.print)
    elif bulk is not None:
        figures = wan_bulk.bulk(wan_bulk.BulkPlan(bulk), console.print)
    elif spread and cut is None:
        figures = bench_wan.spread(replace(main, gbit=main.gbit / 2), console.print)
    elif cut is not None:
        figures = wan_cut.cut_off(
            CutPlan(cut, regions, spread=spread, window_s=window), console.print
        )
    elif quick:
        figures = bench_wan.wan(
            [small],
            methods=["data-parallel", "decoupled"],
            choices=bench_wan.QUICK_CHOICES,
            periods=5,
            say=console.print,
        )
    else:
        points = [replace(main, rtt_ms=0.0), main]
        if full:
            rest = [replace(main, rtt_ms=rtt_ms) for rtt_ms in (30.0, 150.0)]
            rest += [replace(main, gbit=gbit) for gbit in (0.1, 0.4)]
            points = [*rest, *points]
        methods = ["data-parallel", "diloco", "streaming", "decoupled"]
        figures = bench_wan.wan(
            points,
            methods=methods,
            methods_elsewhere=None if full else ["data-parallel", "decoupled"],
            say=console.print,
        )
        failed += [
            f"{each['gbit_s']:g} Gbit/s, {each['rtt_ms']:g} ms: {each['why']}"
            for each in figures.get("left_out", ())
            if each["failed"]
        ]
        for name, further in further_runs(regions, console.print, full=full).items():
            try:
                figures[name] = further()
            except ArchipelagoError as error:  # the figures before it took an hour
                figures[name] = {"failed": str(error)}
                failed.append(f"{name}: {error}")
    tell(alone[0].strip("-") if alone else "wan", figures, console, as_json=as_json)
    if failed:
        raise RunFailed("\n".join(failed))


def further_runs(
    regions: int, say: Callable[[str], None], *, full: bool
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return what is measured after the points, by its name in the figures: a cut, or all."""
    from archipelago.lab.bench import wan_bulk, wan_cut
    from archipelago.lab.bench.wan_cut import CutPlan

    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "cut": lambda: wan_cut.cut_off(CutPlan(CUT_S, regions), say),
    }
    if full:
        half = CutPlan(0.0, regions, slowness=2.0)
        runs |= {
            "long_cut": lambda: wan_cut.cut_off(CutPlan(LONG_CUT_S, regions), say),
            "slow_region": lambda: wan_cut.slow(half, say),
            "bulk": lambda: wan_bulk.bulk(wan_bulk.BulkPlan(BULK_S), say),
        }
    return runs
