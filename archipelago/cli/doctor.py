"""The command `archipelago doctor`: what is wrong with a run or a cluster, and what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from archipelago.cli.options import FAILED, Json, RunName
from cluster.storage import runs
from cluster.storage.files import json_text
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    from cluster.launch.link_findings import Finding, LinkMeasured
    from cluster.launch.run_findings import RunFacts

SPAN_S = 600.0
"""The last seconds that are looked at, unless `--since` is given."""


def doctor(
    name: RunName = None,
    links: Annotated[
        bool, typer.Option("--links", help="Measure the links between the head and all nodes.")
    ] = False,
    megabytes: Annotated[
        int, typer.Option("--mb", min=1, help="MiB of the object sent over each link.")
    ] = 100,
    span_s: Annotated[
        float, typer.Option("--since", min=1.0, metavar="S", help="Look at the last S s.")
    ] = SPAN_S,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="A Ray cluster; RAY_ADDRESS."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find what is wrong with a run or a Ray cluster, and what to do; exit code 1 for a problem.

    Without a run and a cluster it looks at the newest run of this folder.

    Example: archipelago doctor first --address 10.8.1.1:6379
    """
    from cluster.launch.link_findings import Severity

    head = address or os.environ.get("RAY_ADDRESS")
    if links and head is None:
        raise UserMistake("no cluster: give --address HOST:6379, or set RAY_ADDRESS")
    console = Console(file=sys.stderr if as_json else sys.stdout)
    found: list[Finding] = []
    if name is not None or head is None:
        found += _of_the_run(name, address, span_s)
    elif not links:
        found += _of_the_cluster(head, span_s)
    measured = _measured_links(head, megabytes, console) if links and head is not None else []
    if measured:
        from cluster.launch.link_findings import findings_of

        found += findings_of(measured)
    is_ok = not any(each.severity is Severity.PROBLEM for each in found)
    if as_json:
        shown: dict[str, Any] = {"ok": is_ok, "findings": [*map(asdict, found)]}
        print(json_text(shown | ({"links": _rows(measured)} if links else {})))
    else:
        _show(console, found, links_only=links and name is None)
    if not is_ok:
        raise typer.Exit(FAILED)


def _show(console: Console, found: Sequence[Finding], *, links_only: bool) -> None:
    for each in found:
        text = f"{each.severity}: {each.where}: {each.what}\n  {each.hint}"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
    if not found:
        nothing = "nothing limits these links but the links themselves"
        console.print(nothing if links_only else "no finding")


def _of_the_run(name: str | None, address: str | None, span_s: float) -> list[Finding]:
    """Return the findings about a run, and about its cluster if that or RAY_ADDRESS was given.

    The cluster of a live run of this machine is also asked if one of its islands is silent.
    """
    from cluster.launch.causes import SILENT, cause_of
    from cluster.launch.run_findings import findings_about

    head = address or os.environ.get("RAY_ADDRESS")
    facts, run, live = _facts(name, address, span_s)
    silent = [
        each["island"]
        for each in facts.status["islands"]
        if (cause := cause_of(each["why"], each["state"], None)) and cause.kind == SILENT
    ]
    found: list[Finding] = []
    if head is None and silent and live is not None:
        live.prepare()
        head = live.address
    if head is not None and facts.is_live:
        from cluster.launch.cluster_findings import findings_about_cluster
        from cluster.launch.cluster_health import cluster_health

        health, probes = cluster_health(head, run, silent, span_s)
        facts = replace(facts, probes=probes)
        found = findings_about_cluster(health)
    return [*findings_about(facts), *found]


def _facts(
    name: str | None, address: str | None, span_s: float
) -> tuple[RunFacts, str, runs.Live | None]:
    """Return the facts about a run, its name, and how to reach it if it is live."""
    from cluster.launch.run_facts import facts_of, facts_over_ray

    reached = runs.reach(name, address)
    if isinstance(reached, runs.Live) and not reached.pid:  # its directory is elsewhere
        from contextlib import closing

        from cluster.launch.status_stream import status_stream

        with closing(status_stream(name, address, 0.0)) as seen:
            return facts_over_ray(next(seen)), reached.run, reached
    run_dir = runs.here(name)
    live = reached if isinstance(reached, runs.Live) else None
    return facts_of(run_dir, span_s), run_dir.name, live


def _of_the_cluster(head: str, span_s: float) -> list[Finding]:
    from cluster.launch.cluster_findings import findings_about_cluster
    from cluster.launch.cluster_health import cluster_health

    health, _ = cluster_health(head, span_s=span_s)
    return findings_about_cluster(health)


def _measured_links(head: str, megabytes: int, console: Console) -> list[LinkMeasured]:
    from cluster.launch.links import measured

    return measured(head, megabytes * 2**20, lambda text: console.print(text, soft_wrap=True))


def _rows(measured: Sequence[LinkMeasured]) -> list[dict[str, Any]]:
    return [
        {"from": each.source.name, "to": each.target.name, "rtt_ms": each.rtt_ms,
         "gbit_s": each.gbit_s, "window_gbit_s": each.window_gbit_s, "error": each.error}
        for each in measured
    ]  # fmt: skip
