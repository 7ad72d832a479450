"""The command `archipelago plan`, and the parts of `simulate` about simulated clusters of chips.

Each function imports the planner only when it needs it.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.options import Json
from cluster.config.machines import load_cluster, parse_cluster
from cluster.storage.files import json_text

PAPERS = parse_cluster(
    {
        "regions": [{"name": "all", "gbit_s": 100.0}],
        "groups": [{"group": "all", "region": "all", "chips": 4688 * 256, "slice_chips": 256}],
        "training": {"parameters": 5e9, "tokens": 1e12, "batch_tokens": 16e6, "step_s": 1.0},
    },
    "the paper's cluster",
)
"""The cluster of table 2 of arXiv:2604.21428: 1.2M chips, 5B parameters, 1T tokens.

The other values are our own.
"""
COMPARED, COMPARED_FULL = (4, 4_000), (8, 40_000)
"""Pairs of the number of seeds and the most failures of a trace, fast and with `--full`."""


def plan(
    cluster_path: Annotated[
        Path, typer.Argument(metavar="CLUSTER.toml", help="Chips, regions, links, the model.")
    ],
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="PRESET|config.json",
            help="The model to plan for, in place of the file's training.parameters.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan how to train on a cluster, which need not exist: settings, expected figures, reasons.

    The size of a preset is computed from its shapes; no array is allocated.

    Example: archipelago plan examples/cluster.toml
    """
    from archipelago.cli.planning_tables import show_plan
    from archipelago.lab.planner.plan import plan

    cluster = load_cluster(cluster_path, None if model is None else sizes_of(model))
    made = plan(cluster, seed)
    if as_json:
        print(json_text(made.as_json()))
    else:
        show_plan(made, cluster, Console())


def sizes_of(model: str) -> dict[str, float]:
    """Return the keys of [training] that hold the parameters of a preset or a `config.json`.

    They are computed from shapes, so no array is allocated.

    Errors: `UserMistake` if there is no such model.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the accelerators belong to the islands
    from archipelago.cli.model import report

    counts = report(model, batch_size=1, window=1, fragments=1, mesh="", options=[]).parameters
    return {"parameters": float(counts.total), "active_parameters": float(counts.active)}


def table1(seed: int, *, full: bool, as_json: bool) -> None:
    """Carry out `simulate --table1`: the paper's table 1, and the agreement of both layers."""
    from archipelago.cli.planning_tables import show_table1, show_windows
    from archipelago.lab.planner import layer_agreement as agreement
    from archipelago.lab.planner import table1 as paper_table

    made = paper_table.table1(seed, paper_table.FULL if full else paper_table.FAST)
    count = agreement.FULL_ROUNDS if full else agreement.FAST_ROUNDS
    windows = tuple(agreement.windows(seed, count, made.fitted.recovery))
    if as_json:
        rules = {"rounds_each": count, "windows": [asdict(window) for window in windows]}
        print(json_text({**made.as_json(), "rules": rules}))
        return
    console = Console()
    show_table1(made, console)
    show_windows(windows, count, console)


def bandwidth(seed: int, *, as_json: bool) -> None:
    """Carry out `simulate --bandwidth`: links for shares of computing, and published figures."""
    from archipelago.cli.planning_tables import show_bandwidth
    from archipelago.lab.planner import anchors
    from archipelago.lab.planner import bandwidth as links

    exchanges = links.compared_exchanges(anchors.ISLANDS, anchors.H, anchors.P, anchors.TAU)
    rows, found = links.rows(exchanges), anchors.anchors(seed)
    if as_json:
        figures = {
            "rows": [asdict(row) for row in rows],
            "not_fitted": [asdict(anchor) for anchor in found],
            "islands": anchors.ISLANDS,
            "every": anchors.H,
            "fragments": anchors.P,
            "overlap": anchors.TAU,
        }
        print(json_text(figures))
        return
    show_bandwidth(rows, found, Console())


def simulated(path: Path, seed: int, *, full: bool, as_json: bool) -> None:
    """Carry out `simulate CLUSTER.toml`: goodput and uptime of each configuration."""
    from archipelago.cli.planning_tables import show_compared
    from archipelago.lab.planner.compare import compare

    seeds, failures = COMPARED_FULL if full else COMPARED
    rows = compare(load_cluster(path), seed, seeds=seeds, failures=failures)
    if as_json:
        print(json_text({"cells": [asdict(row) for row in rows]}))
        return
    show_compared(rows, Console())


def draw(folder: Path, path: Path | None, seed: int, *, as_json: bool) -> None:
    """Carry out `simulate --pictures DIR`; the plan is of this cluster, or else of the paper's."""
    from archipelago.lab.planner import pictures

    cluster = PAPERS if path is None else load_cluster(path)
    made = [str(each) for each in pictures.draw_all(folder, cluster, seed)]
    print(json_text({"pictures": made}) if as_json else "\n".join(made))
