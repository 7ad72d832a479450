"""The command `archipelago stage`: whether a run passes a stage of a roll-out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from archipelago.cli.options import Json
from cluster.storage.files import json_text

if TYPE_CHECKING:
    from archipelago.lab.checks.rollout import Criterion


def stage(
    name: Annotated[
        str, typer.Argument(metavar="RUN", help="The directory of a run, or its name here.")
    ],
    number: Annotated[
        int,
        typer.Option(
            "--stage", min=1, max=3, help="1: from 2 regions; 2: from 4 regions; 3: from 8."
        ),
    ],
    plan: Annotated[
        Path | None,
        typer.Option(metavar="PLAN.json", help="Output of `archipelago plan CLUSTER.toml --json`."),
    ] = None,
    expected_loss: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="NATS", help="Largest held-out loss that passes."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Decide whether a run passes a stage of a roll-out; exit with 1 if it does not.

    The run must have ended, sent no more bytes than planned, and got over one drain, one kill and
    one cut. The output names what is missing, also for the next stage.

    Example: archipelago stage runs/two-regions --stage 1
    """
    from dataclasses import asdict

    from archipelago.lab.checks.rollout import verdict
    from archipelago.lab.report.run_record import find_run, read_run
    from archipelago.lab.report.stage_facts import read_plan, stage_facts

    record = read_run(find_run(name))
    facts = stage_facts(record, expected_loss, None if plan is None else read_plan(plan))
    found = verdict(facts, number)
    if as_json:
        print(json_text({**asdict(found), "passed": found.passed, "problems": record.problems}))
        raise typer.Exit(0 if found.passed else 1)
    out = Console(highlight=False, markup=False, soft_wrap=True)
    for problem in record.problems:
        out.print(problem)
    out.print(f"{found.run}: stage {number} {'passed' if found.passed else 'NOT passed'}")
    out.print(_table(found.criteria))
    for each in found.criteria:
        if not each.passed:
            out.print(f"{each.name}: {each.remedy}")
    if number + 1 in (2, 3):
        missing = [f"{each.name} ({each.needs})" for each in found.next_stage]
        out.print(f"missing for stage {number + 1}: {', '.join(missing) or 'nothing'}")
    raise typer.Exit(0 if found.passed else 1)


def _table(criteria: Sequence[Criterion]) -> Table:
    table = Table("criterion", "result", "has", "needs", box=None)
    for each in criteria:
        table.add_row(each.name, "ok" if each.passed else "FAILED", each.has, each.needs)
    return table
