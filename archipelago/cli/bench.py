"""The command group `archipelago bench`: one command for each figure."""

from __future__ import annotations

import typer

from archipelago.cli.bench_costs import accelerator, large, merge, overhead, scale
from archipelago.cli.bench_faults import calibrate, faults, recovery
from archipelago.cli.bench_learning import parity, wire
from archipelago.cli.bench_wan import wan

bench = typer.Typer(help="Measure; each prints medians with their spread.", no_args_is_help=True)
for command in (
    parity, recovery, faults, merge, wire, scale, overhead, large, calibrate, accelerator, wan,
):  # fmt: skip
    bench.command()(command)
