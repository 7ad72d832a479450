"""The command `archipelago audit`: what each region read, and what crossed its border."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from archipelago.cli.options import Json
from cluster.storage.files import json_text

FIRST = 12
"""Digits of a digest that a table shows."""


def audit(
    name: Annotated[
        str, typer.Argument(metavar="RUN", help="The directory of a run, or its name here.")
    ],
    lineage: Annotated[
        bool, typer.Option("--lineage", help="List all merges with their contributors and digests.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Account for the data that each region read, and for what crossed its border.

    Everything comes from the tape of the run: leases, messages by kind with their bytes and a
    digest, and the lineage of every merge. Islands without a region are shown as one. The digests
    of payloads need `durability.keep_contributions` and `--lineage`. It exits with 1 if something
    left a region that may not (`regions.NAME.may_leave`), if the tape is damaged other than by a
    crash in the middle of its last write, or if a kept payload was changed or cannot be read.

    Example: archipelago audit runs/regions --lineage
    """
    from archipelago.lab.checks.audit import audit as audited
    from archipelago.lab.checks.audit_result import as_json as plain
    from archipelago.lab.checks.audit_result import traffic_rows
    from archipelago.lab.report.run_record import find_run

    found = audited(find_run(name), digests=lineage)
    if as_json:
        print(json_text(plain(found, lineage=lineage)))
        raise typer.Exit(0 if found.passed else 1)
    out = Console(highlight=False, markup=False, soft_wrap=True)
    out.print(f"{found.run}: {found.events:,} events, {found.merges:,} merges")
    if found.merges_lost:
        out.print(f"{found.merges_lost:,} more merges were lost at restarts: not in the model")
    if found.unknown_versions:
        out.print(
            f"{found.unknown_versions:,} versions are of unknown origin: the run resumed from "
            "stored versions that its tape does not have"
        )
    for region in found.regions:
        pieces = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in region.leases)
        out.print(f"\nregion {region.region}: islands {', '.join(region.islands)}")
        out.print(f"leases read: {pieces or 'none'}")
        if region.may_leave is not None:
            out.print(f"may leave: {', '.join(region.may_leave)}")
        table = Table("direction", "kind", _right("messages"), _right("bytes"), "digest", box=None)
        if lineage:
            table.add_column("payloads kept")
        for direction, kind, of in traffic_rows(region):
            row = [direction, kind, f"{of.messages:,}", f"{of.bytes:,}", of.sha256[:FIRST]]
            if lineage and of.payloads_sha256 is not None:
                row.append(f"{of.payloads:,}, digest {of.payloads_sha256[:FIRST]}")
            table.add_row(*row)
        out.print(table)
        for kind in region.violations:
            out.print(f"NOT ALLOWED: {kind} left the region (regions.{region.region}.may_leave)")
    if lineage:
        table = Table("fragment", "version", "contributor", "region", _right("weight"), "payload")
        for merge in found.lineage:
            if merge.has_unknown_origin:
                table.add_row(str(merge.fragment), merge.version, "unknown origin")
            for each in merge.contributors:
                digest = "lost" if merge.lost else (each.sha256 or "not kept")[:FIRST]
                row = (str(merge.fragment), merge.version, each.id, each.region)
                table.add_row(*row, f"{each.weight:.4f}", digest)
        out.print(table)
    out.print(f"\nlineage {found.lineage_sha256}")
    for why in found.unconfirmed:
        out.print(f"a kept payload is not confirmed: {why}")
    if found.damage is not None:
        out.print(f"the tape is damaged: {found.damage}")
    raise typer.Exit(0 if found.passed else 1)


def _right(name: str) -> Column:
    return Column(name, justify="right")
